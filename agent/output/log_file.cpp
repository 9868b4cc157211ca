#include "agent/output/log_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent/output/full_logs.hpp"
#include "agent/output/worker_output_files.hpp"

namespace ddprun::agent {

Result<LogFile> LogFile::open(const std::string& path, const LogRotation& rotation) {
    Result<UniqueFd> file = open_log(path);
    if (!file) {
        return file.error();
    }
    return LogFile(std::move(*file), path, rotation);
}

LogFile::LogFile(UniqueFd file, std::string path, const LogRotation& rotation)
    : file_(std::move(file)), path_(std::move(path)), rotation_(rotation) {
    if (rotation_.file_bytes_max > 0) {
        struct stat status {};
        size_ = ::fstat(file_.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
        const std::vector<std::uint64_t> full = full_logs_of(path_);
        last_number_ = full.empty() ? 0 : full.back();
    }
}

Result<void> LogFile::take(std::string_view& bytes) {
    if (rotation_.file_bytes_max == 0) {
        return take_into_log(file_.get(), bytes, path_);
    }
    Result<void> rotated;
    while (!bytes.empty()) {
        std::size_t count = room_for(bytes);
        if (count == 0) {
            rotated = rotate();
            count = rotated ? room_for(bytes) : bytes.size();
        }
        std::string_view piece = bytes.substr(0, count);
        const Result<void> written = take_into_log(file_.get(), piece, path_);
        size_ += count - piece.size();
        bytes.remove_prefix(count - piece.size());
        if (!written) {
            return written;
        }
    }
    return rotated;
}

std::size_t LogFile::room_for(std::string_view bytes) const {
    const std::uint64_t room = rotation_.file_bytes_max - std::min(size_, rotation_.file_bytes_max);
    if (bytes.size() <= room) {
        return bytes.size();
    }
    const std::size_t line_end = bytes.substr(0, room).rfind('\n');
    if (line_end != std::string_view::npos) {
        return line_end + 1;
    }
    return size_ == 0 ? static_cast<std::size_t>(room) : 0;
}

Error LogFile::grows_on(const Error& why) const {
    return {ErrorCode::LimitExceeded,
            fmt::format("the full log file {} grows on: {}", path_, why.what)};
}

Result<void> LogFile::rotate() {
    const std::string full = fmt::format("{}.{}", path_, last_number_ + 1);
    if (std::rename(path_.c_str(), full.c_str()) == 0) {
        ++last_number_;
    } else if (errno != ENOENT) {
        // Not there: an earlier attempt or another program has set it aside; a new one is due.
        return grows_on(system_error(errno, "giving it the name " + full));
    }
    Result<UniqueFd> next = open_log(path_);
    if (!next) {
        return grows_on(next.error());
    }
    file_ = std::move(*next);
    size_ = 0;
    const auto kept = static_cast<std::uint64_t>(rotation_.kept_max);
    if (kept > 0 && last_number_ > kept) {
        ::unlink(fmt::format("{}.{}", path_, last_number_ - kept).c_str());
    }
    return {};
}

}  // namespace ddprun::agent
