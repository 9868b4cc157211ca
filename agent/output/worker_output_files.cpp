#include "agent/output/worker_output_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "base/os/read_files.hpp"

namespace ddprun::agent {

Result<void> make_folders(const std::string& path) {
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string part = path.substr(0, end);
        if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
            // An existing parent on a read-only or foreign file system may refuse in other ways.
            const int error = errno;
            struct stat status {};
            if (::stat(part.c_str(), &status) != 0) {
                return system_error(error, "making the log folder " + part);
            }
        }
        if (end == std::string::npos) {
            break;
        }
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        return system_error(errno, "making the log folder " + path);
    }
    if (!S_ISDIR(status.st_mode)) {
        return system_error(ENOTDIR, "making the log folder " + path);
    }
    return {};
}

Result<UniqueFd> hold_folder(const std::string& path) {
    if (const Result<void> made = make_folders(path); !made) {
        return made.error();
    }
    UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.is_open() || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
        return system_error(errno, "locking the log folder " + path);
    }
    return folder;
}

Result<UniqueFd> open_log(const std::string& path) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd.is_open()) {
        return system_error(errno, "opening the log file " + path);
    }
    return fd;
}

Result<void> append_to_log(int fd, std::string_view bytes, const std::string& path) {
    return take_into_log(fd, bytes, path);
}

Result<void> take_into_log(int fd, std::string_view& bytes, const std::string& path) {
    while (!bytes.empty()) {
        const ssize_t count = ::write(fd, bytes.data(), bytes.size());
        if (count > 0) {
            bytes.remove_prefix(static_cast<std::size_t>(count));
        } else if (count < 0 && errno != EINTR) {
            return system_error(errno, "writing the log file " + path);
        }
    }
    return {};
}

Result<void> replace_file(const std::string& path, std::string_view content) {
    const std::size_t slash = path.rfind('/');
    if (slash != std::string::npos && slash > 0) {
        if (const Result<void> made = make_folders(path.substr(0, slash)); !made) {
            return made.error();
        }
    }
    return put_file(path, content, 0644);
}

Result<void> put_file(const std::string& path, std::string_view content, mode_t mode) {
    const std::string aside = fmt::format("{}.{}", path, ::getpid());
    ::unlink(aside.c_str());
    const UniqueFd file(
        ::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!file.is_open()) {
        return system_error(errno, "opening the file " + aside);
    }
    const Result<void> written = append_to_log(file.get(), content, aside);
    if (written && std::rename(aside.c_str(), path.c_str()) == 0) {
        return {};
    }
    const Error failure = written ? system_error(errno, "writing " + path) : written.error();
    ::unlink(aside.c_str());
    return failure;
}

void reserve_file(const std::string& path, std::size_t bytes) {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
    if (file.is_open()) {
        (void)!::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
    }
}

Result<void> overwrite_file(const std::string& path, std::string_view content) {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file.is_open()) {
        return system_error(errno, "opening the file " + path);
    }
    // A part of it would be worse than the present content. A file system that cannot reserve is
    // trusted to write a block whole or not at all.
    const auto size = static_cast<off_t>(content.size());
    const bool has_room = ::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, size) == 0;
    if (!has_room && errno != EOPNOTSUPP && errno != ENOSYS) {
        return system_error(errno, "writing the file " + path);
    }
    if (const Result<void> written = append_to_log(file.get(), content, path); !written) {
        return written.error();
    }
    return ::ftruncate(file.get(), size) == 0 ? Result<void>()
                                              : system_error(errno, "writing the file " + path);
}

Result<void> replace_link(const std::string& link, const std::string& target) {
    // Made aside and renamed, so that a reader finds the old or the new one at any time.
    const std::string aside = fmt::format("{}.{}", link, ::getpid());
    ::unlink(aside.c_str());
    if (::symlink(target.c_str(), aside.c_str()) == 0 &&
        std::rename(aside.c_str(), link.c_str()) == 0) {
        return {};
    }
    const Error failure = system_error(errno, "making the link " + link);
    ::unlink(aside.c_str());
    return failure;
}

Result<void> link_by_rank(const std::string& folder, Rank rank, const std::string& log_dir) {
    const std::string links = folder + "/by-rank";
    if (const Result<void> made = make_folders(links); !made) {
        return made.error();
    }
    const std::string target =
        std::filesystem::path(log_dir).lexically_relative(std::filesystem::path(links)).string();
    return replace_link(fmt::format("{}/{}", links, rank.value()),
                        target.empty() ? log_dir : target);
}

std::string read_error_file(const std::string& path, std::size_t bytes_max) {
    // A worker can put anything there: a FIFO must not hold us up.
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!fd.is_open() || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return {};
    }
    std::string text = read_part(fd.get(), bytes_max);
    text.shrink_to_fit();
    return text;
}

}  // namespace ddprun::agent
