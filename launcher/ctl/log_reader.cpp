#include "launcher/ctl/log_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent/output/full_logs.hpp"
#include "base/os/file_identity.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

UniqueFd open_to_read(const std::string& path) {
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

/// Looks for the beginning of the last lines from the end on, through file after file.
class LastLines {
public:
    explicit LastLines(std::size_t count) : left_(count) {}

    /// Finds where the last lines begin in that file, which comes before the files that were
    /// searched; returns nothing if they begin before that file.
    [[nodiscard]] std::optional<off_t> begin_in(int fd) {
        struct stat status {};
        if (::fstat(fd, &status) != 0) {
            return 0;
        }
        if (left_ == 0) {
            return status.st_size;
        }
        std::vector<char> piece(kPieceBytes);
        off_t begin = status.st_size;
        while (begin > 0) {
            const auto size = static_cast<std::size_t>(std::min<off_t>(begin, kPieceBytes));
            begin -= static_cast<off_t>(size);
            if (::pread(fd, piece.data(), size, begin) != static_cast<ssize_t>(size)) {
                return begin;
            }
            for (std::size_t at = size; at > 0; --at) {
                // The end of the last line begins no further one.
                if (!std::exchange(is_at_end_, false) && piece[at - 1] == '\n' && --left_ == 0) {
                    return begin + static_cast<off_t>(at);
                }
            }
        }
        return std::nullopt;
    }

private:
    std::size_t left_;  ///< lines
    bool is_at_end_ = true;
};

}  // namespace

LogReader::LogReader(std::string path) : path_(std::move(path)) {}

void LogReader::skip_to_last(std::size_t count) {
    LastLines last(count);
    std::optional<std::uint64_t> number;
    file_ = open_to_read(path_);
    // Between being full and beginning anew it is not there.
    if (!file_.is_open() && !open_previous(number)) {
        return;
    }
    std::optional<off_t> begin = last.begin_in(file_.get());
    while (!begin && open_previous(number)) {
        begin = last.begin_in(file_.get());
    }
    ::lseek(file_.get(), begin.value_or(0), SEEK_SET);
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
            // The name is checked only at the end of the file: bytes written before the file was
            // set aside have been read by then, or come with one more read.
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

bool LogReader::open_previous(std::optional<std::uint64_t>& number) {
    for (;;) {
        const std::vector<std::uint64_t> full = agent::full_logs_of(path_);
        std::optional<std::uint64_t> before;
        for (const std::uint64_t one : full) {
            // The log that was opened may have been set aside since.
            const bool is_ours =
                number ? one >= *number
                       : file_.is_open() && is_same_file(file_.get(), name_of_full(one));
            if (is_ours) {
                break;
            }
            before = one;
        }
        UniqueFd opened = before ? open_to_read(name_of_full(*before)) : UniqueFd();
        if (agent::full_logs_of(path_) != full) {
            continue;
        }
        if (!opened.is_open()) {
            return false;
        }
        file_ = std::move(opened);
        number = before;
        return true;
    }
}

std::string LogReader::name_of_full(std::uint64_t number) const {
    return fmt::format("{}.{}", path_, number);
}

bool LogReader::open_next() {
    for (;;) {
        const std::vector<std::uint64_t> full = agent::full_logs_of(path_);
        std::string next = path_;
        // Newest first: the file after ours, or of all if ours is gone, the oldest.
        for (auto number = full.rbegin(); number != full.rend(); ++number) {
            const std::string name = name_of_full(*number);
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
