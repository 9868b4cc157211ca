#include "launcher/ctl/log_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent/output/full_logs.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

UniqueFd open_to_read(const std::string& path) {
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

bool is_same_file(int fd, const std::string& path) {
    struct stat open_one {};
    struct stat named {};
    return ::fstat(fd, &open_one) == 0 && ::stat(path.c_str(), &named) == 0 &&
           open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

/// Where the last `count` lines of the file begin.
off_t start_of_last(int fd, std::size_t count) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        return 0;
    }
    std::vector<char> piece(kPieceBytes);
    off_t begin = status.st_size;
    std::size_t lines = 0;
    while (begin > 0) {
        const auto size = static_cast<std::size_t>(std::min<off_t>(begin, kPieceBytes));
        begin -= static_cast<off_t>(size);
        if (::pread(fd, piece.data(), size, begin) != static_cast<ssize_t>(size)) {
            return begin;
        }
        for (std::size_t at = size; at > 0; --at) {
            const off_t after = begin + static_cast<off_t>(at);
            // The end of the last line begins no further one.
            if (piece[at - 1] == '\n' && after != status.st_size && ++lines == count) {
                return after;
            }
        }
    }
    return 0;
}

}  // namespace

LogReader::LogReader(std::string path) : path_(std::move(path)) {}

void LogReader::skip_to_last(std::size_t count) {
    file_ = open_to_read(path_);
    if (file_.is_open()) {
        ::lseek(file_.get(), count == 0 ? 0 : start_of_last(file_.get(), count),
                count == 0 ? SEEK_END : SEEK_SET);
    }
}

void LogReader::read(const std::function<void(std::string_view)>& take) {
    std::vector<char> piece(kPieceBytes);
    if (!file_.is_open() && !open_next()) {
        return;
    }
    for (;;) {
        const ssize_t count = ::read(file_.get(), piece.data(), piece.size());
        if (count > 0) {
            take(std::string_view(piece.data(), static_cast<std::size_t>(count)));
        } else if (count == 0 || errno != EINTR) {
            // The name is looked at only after the end: what was written before the file was set
            // aside has been read by then, or comes with one more look.
            if (is_same_file(file_.get(), path_)) {
                return;
            }
            const ssize_t more = ::read(file_.get(), piece.data(), piece.size());
            if (more > 0) {
                take(std::string_view(piece.data(), static_cast<std::size_t>(more)));
            } else if (!open_next()) {
                return;
            }
        }
    }
}

bool LogReader::open_next() {
    for (;;) {
        const std::vector<std::uint64_t> full = agent::full_logs_of(path_);
        std::string next = path_;
        // Newest first: the file after ours, or of all if ours is gone, the oldest.
        for (auto number = full.rbegin(); number != full.rend(); ++number) {
            const std::string name = fmt::format("{}.{}", path_, *number);
            if (file_.is_open() && is_same_file(file_.get(), name)) {
                break;
            }
            next = name;
        }
        UniqueFd opened = open_to_read(next);
        // Set aside since they were listed: there is one more between ours and this.
        if (agent::full_logs_of(path_) != full) {
            continue;
        }
        if (!opened.is_open()) {
            return false;
        }
        file_ = std::move(opened);
        return true;
    }
}

}  // namespace ddprun::launcher
