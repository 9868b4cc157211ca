#include "agent/output/event_file.hpp"

#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "agent/output/worker_output_files.hpp"

namespace ddprun::agent {

Result<void> EventFile::begin() {
    if (has_begun_ || folder_.empty()) {
        return {};
    }
    has_begun_ = true;
    return write_held();
}

Result<void> EventFile::add(std::string line) {
    if (folder_.empty() || is_full_) {
        return {};
    }
    line += '\n';
    held_.push_back(std::move(line));
    const Result<void> written = has_begun_ ? write_held() : Result<void>();
    if (held_.size() > limits_.events_waiting_max) {
        held_.pop_front();
    }
    return written;
}

Result<void> EventFile::write_held() {
    const std::string path = folder_ + "/" + kEventsName;
    if (!held_.empty() && !file_.is_open()) {
        Result<UniqueFd> opened = open_log(path);
        if (!opened) {
            return opened.error();
        }
        file_ = *std::move(opened);
    }
    while (!held_.empty()) {
        if (written_ + held_.front().size() > limits_.events_file_bytes_max) {
            is_full_ = true;
            held_.clear();
            file_.reset();
            return Error{ErrorCode::LimitExceeded,
                         fmt::format("{} has {} bytes: further events are not written to it", path,
                                     written_)};
        }
        if (const Result<void> written = write(held_.front()); !written) {
            return written;
        }
        held_.pop_front();
    }
    return {};
}

Result<void> EventFile::write(const std::string& line) {
    const std::string text = is_line_open_ ? "\n" + line : line;
    std::string_view left = text;
    const Result<void> written = take_into_log(file_.get(), left, folder_ + "/" + kEventsName);
    const std::size_t count = text.size() - left.size();
    written_ += count;
    is_line_open_ = count == 0 ? is_line_open_ : text[count - 1] != '\n';
    return written;
}

}  // namespace ddprun::agent
