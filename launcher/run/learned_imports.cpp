#include "launcher/run/learned_imports.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <xxhash.h>

#include "agent/warm/standby_slots.hpp"
#include "base/os/read_files.hpp"
#include "base/os/unique_fd.hpp"
#include "launcher/machine/fingerprint.hpp"

namespace ddprun::launcher {

namespace {

/// The first line, without its end.
constexpr std::string_view kHeader = "ddprun imports 3";

std::string file_of(const LearnedImportsPlaces& places, const Limits& limits) {
    const std::string cache = places.cache.starts_with('/')  ? places.cache
                              : places.home.starts_with('/') ? places.home + "/.cache"
                                                             : std::string();
    const std::string content =
        places.program.empty() ? std::string() : hash_of_program(places.program, limits);
    if (cache.empty() || content.empty() || places.python.empty()) {
        return {};
    }
    std::error_code ignored;
    const std::string program = std::filesystem::absolute(places.program, ignored).string();
    const std::string key = fmt::format("{}\n{}\n{}", program, content, places.python);
    return fmt::format("{}/ddprun/imports/{:016x}", cache, XXH64(key.data(), key.size(), 0));
}

/// Why the file is not used, or what it holds in `text`.
std::string read_whole(int fd, std::size_t bytes_max, std::string& text) {
    struct stat status {};
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        return "it is no regular file";
    }
    if (status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return "it is another user's, or others may write to it";
    }
    if (static_cast<std::uint64_t>(status.st_size) > bytes_max) {
        return fmt::format("it has {} bytes, at most {} are taken", status.st_size, bytes_max);
    }
    text = read_part(fd, bytes_max);
    return {};
}

std::string take_names(std::string_view text, std::vector<std::string>& names) {
    for (int number = 1; !text.empty(); ++number) {
        const std::size_t end = text.find('\n');
        const std::string_view line = text.substr(0, end);
        if (end == std::string_view::npos ||
            (number == 1 ? line != kHeader : !agent::is_told_line(line))) {
            return fmt::format("line {} is no name of a module", number);
        }
        if (number > 1) {
            names.emplace_back(line);
        }
        text.remove_prefix(end + 1);
    }
    return {};
}

}  // namespace

LearnedImports read_learned_imports(const LearnedImportsPlaces& places, const Limits& limits) {
    LearnedImports found{.file = file_of(places, limits), .modules = {}, .problem = {}};
    if (found.file.empty()) {
        return found;
    }
    const UniqueFd fd(open(found.file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd.is_open()) {
        // A first run finds no file; a file that cannot be read cannot be of use.
        return found;
    }
    std::string text;
    std::string why =
        read_whole(fd.get(), kHeader.size() + 1 + limits.standby_imports_bytes_max, text);
    if (why.empty()) {
        why = take_names(text, found.modules);
    }
    if (!why.empty()) {
        found.modules.clear();
        found.problem = fmt::format("--warm: {} is not used: {}; remove it", found.file, why);
    }
    return found;
}

}  // namespace ddprun::launcher
