#include "agent/output/event_file.hpp"

#include <utility>

#include <fmt/format.h>

#include "agent/output/worker_output_files.hpp"

namespace ddprun::agent {

Result<void> EventFile::begin() {
    if (has_begun_ || folder_.empty()) {
        return {};
    }
    has_begun_ = true;
    Result<UniqueFd> opened = open_log(folder_ + "/" + kEventsName);
    if (!opened) {
        return opened.error();
    }
    file_ = *std::move(opened);
    for (const std::string& line : std::exchange(held_, {})) {
        const Result<void> written = write(line);
        if (!written) {
            return written;
        }
    }
    return {};
}

Result<void> EventFile::add(std::string line) {
    if (folder_.empty()) {
        return {};
    }
    line += '\n';
    if (has_begun_) {
        return write(line);
    }
    held_.push_back(std::move(line));
    if (held_.size() > limits_.events_waiting_max) {
        held_.pop_front();
    }
    return {};
}

Result<void> EventFile::write(const std::string& line) {
    if (!file_.is_open()) {
        return {};
    }
    const std::string path = folder_ + "/" + kEventsName;
    if (written_ + line.size() > limits_.events_file_bytes_max) {
        file_.reset();
        return Error{
            ErrorCode::LimitExceeded,
            fmt::format("{} has {} bytes: further events are not written to it", path, written_)};
    }
    written_ += line.size();
    const Result<void> written = append_to_log(file_.get(), line, path);
    if (!written) {
        file_.reset();
    }
    return written;
}

}  // namespace ddprun::agent
