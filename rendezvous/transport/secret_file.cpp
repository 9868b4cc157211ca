#include "rendezvous/transport/secret_file.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/os/own_variable.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::size_t kHexDigits = 2 * JobSecret::kBytes;

std::string named_secret_file(const std::string& given) {
    return given.empty() ? own_variable("DDPRUN_SECRET_FILE") : given;
}

Result<JobSecret> parse_secret(std::string_view text, const std::string& path) {
    const Error bad{ErrorCode::BadSecret,
                    fmt::format("secret file {} does not hold {} hexadecimal digits; copy it from "
                                "another node, or make one with: openssl rand -hex {} > {}",
                                path, kHexDigits, JobSecret::kBytes, path)};
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
        text.remove_suffix(1);
    }
    if (text.size() != kHexDigits) {
        return bad;
    }
    JobSecret::Bytes bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const char* const digits = text.data() + 2 * i;
        const auto [end, failure] = std::from_chars(digits, digits + 2, bytes[i], 16);
        if (failure != std::errc() || end != digits + 2) {
            return bad;
        }
    }
    return JobSecret(bytes, path);
}

std::optional<Error> check_privacy(int fd, const std::string& path) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        return system_error(errno, "secret file " + path + " cannot be examined");
    }
    constexpr mode_t kOfOthers = S_IRWXG | S_IRWXO;
    if ((status.st_mode & kOfOthers) != 0) {
        return Error{ErrorCode::PermissionDenied,
                     fmt::format("secret file {} is open to other users (mode {:04o}); run: "
                                 "chmod 600 {}",
                                 path, status.st_mode & 07777U, path)};
    }
    if (status.st_uid != ::geteuid() && status.st_uid != 0) {
        return Error{ErrorCode::PermissionDenied,
                     fmt::format("secret file {} belongs to user {}, not to you (user {}); name "
                                 "your own with --secret-file",
                                 path, status.st_uid, ::geteuid())};
    }
    return std::nullopt;
}

Result<JobSecret> read_secret(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!file.is_open()) {
        return system_error(errno, "secret file " + path + " cannot be opened");
    }
    if (std::optional<Error> problem = check_privacy(file.get(), path)) {
        return *std::move(problem);
    }
    std::string text(kHexDigits + 8, '\0');
    std::size_t filled = 0;
    while (filled < text.size()) {
        const ssize_t count = ::read(file.get(), text.data() + filled, text.size() - filled);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return system_error(errno, "secret file " + path + " cannot be read");
        }
        if (count == 0) {
            break;
        }
        filled += static_cast<std::size_t>(count);
    }
    text.resize(filled);
    return parse_secret(text, path);
}

std::string random_hex(std::size_t byte_count) {
    std::vector<unsigned char> bytes(byte_count);
    std::size_t filled = 0;
    while (filled < bytes.size()) {
        const ssize_t count = ::getrandom(bytes.data() + filled, bytes.size() - filled, 0);
        if (count > 0) {
            filled += static_cast<std::size_t>(count);
        }
    }
    return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::optional<Error> write_whole(int fd, std::string_view text, const std::string& path) {
    while (!text.empty()) {
        const ssize_t count = ::write(fd, text.data(), text.size());
        if (count < 0 && errno != EINTR) {
            return system_error(errno, "secret file " + path + " cannot be written");
        }
        if (count > 0) {
            text.remove_prefix(static_cast<std::size_t>(count));
        }
    }
    if (::fsync(fd) != 0) {
        return system_error(errno, "secret file " + path + " cannot be written");
    }
    return std::nullopt;
}

// The whole file appears at once under its name, and never replaces one that exists: link() does
// both, on network file systems too. Its result is not asked: a retried NFS request may report
// EEXIST for the link it made itself. Only the file that exists afterwards counts.
std::optional<Error> create_secret(const std::string& path) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code failure;
    std::filesystem::create_directories(folder.parent_path(), failure);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        const int why = errno;
        return Error{ErrorCode::PermissionDenied,
                     system_error(why, "folder " + folder.string() +
                                           " for the job secret cannot be made (name a file with "
                                           "--secret-file)")
                         .what};
    }
    const std::string temporary = path + "." + random_hex(8);
    const UniqueFd file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600));
    if (!file.is_open()) {
        return system_error(
            errno, "secret file " + temporary + " cannot be made (name one with --secret-file)");
    }
    const std::string text = random_hex(JobSecret::kBytes) + "\n";
    std::optional<Error> problem = write_whole(file.get(), text, temporary);
    if (!problem && ::link(temporary.c_str(), path.c_str()) != 0) {
        const int link_errno = errno;
        if (::access(path.c_str(), F_OK) != 0) {
            problem = system_error(link_errno, "secret file " + path + " cannot be linked");
        }
    }
    ::unlink(temporary.c_str());
    return problem;
}

}  // namespace

std::string secret_file_path(const std::string& given) {
    if (std::string named = named_secret_file(given); !named.empty()) {
        return named;
    }
    if (const std::string config = own_variable("XDG_CONFIG_HOME"); !config.empty()) {
        return config + "/ddprun/secret";
    }
    const std::string home = own_variable("HOME");
    return home.empty() ? std::string() : home + "/.config/ddprun/secret";
}

Result<JobSecret> load_secret(const std::string& given) {
    const std::string path = secret_file_path(given);
    if (path.empty()) {
        return Error{ErrorCode::NotFound,
                     "no job secret: HOME is not set; name a file with --secret-file"};
    }
    return read_secret(path);
}

Result<JobSecret> load_or_create_secret_at(const std::string& path) {
    Result<JobSecret> secret = read_secret(path);
    if (secret || secret.error().code != ErrorCode::NotFound) {
        return secret;
    }
    if (std::optional<Error> problem = create_secret(path)) {
        return *std::move(problem);
    }
    return read_secret(path);
}

Result<JobSecret> load_or_create_secret(const std::string& given) {
    const std::string path = secret_file_path(given);
    const bool is_default_place = named_secret_file(given).empty();
    return is_default_place && !path.empty() ? load_or_create_secret_at(path) : load_secret(given);
}

}  // namespace ddprun::rdzv
