#include "launcher/machine/fingerprint.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "base/os/read_files.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;

/// Reads the beginning of a small file that says which version something is.
std::string beginning_of(const std::string& path, const Limits& limits) {
    return read_beginning(path, limits.version_text_bytes_max).value_or("");
}

/// Returns the text behind `before`, without blanks and quotes around it, up to the line's end.
std::string word_after(std::string_view text, std::string_view before) {
    const std::size_t found = text.find(before);
    if (found == std::string_view::npos) {
        return {};
    }
    std::string_view word = text.substr(found + before.size());
    word = word.substr(0, word.find('\n'));
    constexpr std::string_view kAround = " \t'\"=\r";
    const std::size_t begin = word.find_first_not_of(kAround);
    return begin == std::string_view::npos
               ? std::string()
               : std::string(word.substr(begin, word.find_first_of(kAround, begin) - begin));
}

/// "python3.11", "pypy3.10".
bool has_version(std::string_view name) {
    const std::string_view version =
        name.substr(std::min(name.find_first_of("0123456789"), name.size()));
    return (name.starts_with("python") || name.starts_with("pypy")) &&
           version.find('.') != std::string_view::npos &&
           version.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// An interpreter, as far as its name and folders show.
struct Interpreter {
    std::string prefix;     ///< where its libraries are
    std::string own;        ///< of a virtual environment; else as prefix
    std::string name;       ///< of its folder in lib: python3.11, pypy3.10
    bool sees_both = true;  ///< a virtual environment may hide the libraries of its base
};

/// The one folder of libraries there that has a version in its name; none where there are several.
std::string library_name(const std::string& prefix) {
    std::string found;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(prefix + "/lib", error)) {
        const std::string name = entry.path().filename().string();
        if (has_version(name)) {
            if (!found.empty()) {
                return {};
            }
            found = name;
        }
    }
    return found;
}

Interpreter interpreter_at(const std::string& python, const Limits& limits) {
    std::error_code error;
    const fs::path real = fs::canonical(python, error);
    if (error) {
        return {};
    }
    Interpreter found{.prefix = real.parent_path().parent_path().string(), .own = {}, .name = {}};
    found.own = fs::absolute(python, error).parent_path().parent_path().string();
    const std::string settings = beginning_of(found.own + "/pyvenv.cfg", limits);
    if (settings.empty()) {
        found.own = found.prefix;
    } else {
        found.sees_both = word_after(settings, "include-system-site-packages") == "true";
    }
    const std::string file = real.filename().string();
    found.name = has_version(file) ? file : library_name(found.own);
    return found;
}

/// In the order in which Python looks.
std::vector<std::string> package_folders(const Interpreter& python,
                                         const FingerprintPlaces& places) {
    std::vector<std::string> folders;
    std::string_view listed = places.python_path;
    while (!listed.empty()) {
        const std::size_t end = std::min(listed.find(':'), listed.size());
        folders.emplace_back(listed.substr(0, end));
        listed.remove_prefix(std::min(end + 1, listed.size()));
    }
    if (python.own != python.prefix) {
        folders.push_back(python.own + "/lib/" + python.name + "/site-packages");
    }
    if (python.sees_both) {
        folders.push_back(places.home + "/.local/lib/" + python.name + "/site-packages");
        if (python.prefix == "/usr") {  // Debian's
            folders.push_back("/usr/local/lib/" + python.name + "/dist-packages");
        }
        folders.push_back(python.prefix + "/lib/" + python.name + "/site-packages");
        folders.push_back(python.prefix + "/lib/python3/dist-packages");
    }
    return folders;
}

std::string shown(const std::string& name) {
    const std::size_t digit = name.find_first_of("0123456789");
    if (digit == std::string::npos) {
        return {};
    }
    return fmt::format("{} {}", name.starts_with("pypy") ? "PyPy" : "CPython", name.substr(digit));
}

std::string nccl_in(const std::string& folder, const Limits& limits) {
    const std::string header = beginning_of(folder + "/nvidia/nccl/include/nccl.h", limits);
    std::vector<std::string> numbers;
    for (const char* part : {"#define NCCL_MAJOR", "#define NCCL_MINOR", "#define NCCL_PATCH"}) {
        numbers.push_back(word_after(header, part));
    }
    return numbers.front().empty() ? std::string() : fmt::format("{}", fmt::join(numbers, "."));
}

/// Returns `text` if a wire takes it as a name, else nothing; a file may hold anything.
std::string as_name(std::string text, const Limits& limits) {
    const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7f;
    });
    return is_plain && text.size() <= limits.name_bytes_max ? std::move(text) : std::string();
}

}  // namespace

/// Hashes size, beginning and end: large programs differ there when they are built anew.
std::string hash_of_program(const std::string& path, const Limits& limits) {
    const std::size_t end_bytes = limits.program_hash_bytes_max;
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return {};
    }
    const auto size = static_cast<std::uint64_t>(status.st_size);
    const std::string beginning = read_part(fd.get(), end_bytes);
    const std::uint64_t rest = size - std::min<std::uint64_t>(size, beginning.size());
    const std::uint64_t end = std::min<std::uint64_t>(rest, end_bytes);
    const std::string ending =
        read_part(fd.get(), static_cast<std::size_t>(end), static_cast<off_t>(size - end));
    std::uint64_t hash = XXH64(beginning.data(), beginning.size(), size);
    hash = XXH64(ending.data(), ending.size(), hash);
    return fmt::format("{:016x}", hash);
}

rdzv::Fingerprint read_fingerprint(const FingerprintPlaces& places, const Limits& limits) {
    rdzv::Fingerprint found;
    if (!places.program.empty()) {
        found.program = hash_of_program(places.program, limits);
    }
    if (!places.python.empty()) {
        const Interpreter python = interpreter_at(places.python, limits);
        found.python = shown(python.name);
        for (const std::string& folder : package_folders(python, places)) {
            const std::string text = beginning_of(folder + "/torch/version.py", limits);
            if (!text.empty()) {
                found.torch = as_name(word_after("\n" + text, "\n__version__"), limits);
                found.nccl = as_name(nccl_in(folder, limits), limits);
                break;
            }
        }
    }
    const std::string driver = beginning_of(places.driver, limits);
    found.driver = as_name(driver.substr(0, driver.find('\n')), limits);
    return found;
}

}  // namespace ddprun::launcher
