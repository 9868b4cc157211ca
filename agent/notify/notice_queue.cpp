#include "agent/notify/notice_queue.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::agent {

void NoticeQueue::add(std::string what, std::string line) {
    if (waiting_.size() >= limits_.notices_waiting_max) {
        // The first one stays: it is being tried.
        waiting_.erase(waiting_.begin() + 1);
        ++dropped_;
    }
    waiting_.push_back({std::move(what), std::move(line)});
}

std::optional<std::string> NoticeQueue::begin(Instant now) {
    if (waiting_.empty() || is_under_way_ || (pause_end_ && now < *pause_end_)) {
        return std::nullopt;
    }
    pause_end_.reset();
    is_under_way_ = true;
    return waiting_.front().line;
}

std::string NoticeQueue::ended(Instant now, const std::string& fault) {
    DDP_CHECK(is_under_way_);
    is_under_way_ = false;
    attempts_ += fault.empty() ? 0 : 1;
    if (!fault.empty() && attempts_ < limits_.notice_attempts_max) {
        pause_end_ = now + limits_.notice_pause * (1 << (attempts_ - 1));
        return {};
    }
    std::string said;
    if (!fault.empty()) {
        said = fmt::format("the notice \"{}\" is lost: {} ({} attempts)", waiting_.front().what,
                           fault, attempts_);
    }
    if (const std::size_t dropped = std::exchange(dropped_, 0); dropped > 0) {
        said += fmt::format("{}{} older ones were dropped: more than {} waited",
                            said.empty() ? "" : "; ", dropped, limits_.notices_waiting_max);
    }
    waiting_.pop_front();
    attempts_ = 0;
    return said;
}

std::optional<Instant> NoticeQueue::next_deadline() const {
    return is_under_way_ ? std::nullopt : pause_end_;
}

}  // namespace ddprun::agent
