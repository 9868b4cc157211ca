#include "rendezvous/events/event_log.hpp"

#include <chrono>
#include <utility>

#include "base/check.hpp"

namespace ddprun::rdzv {

const std::string& EventLog::add(const Event& event, Instant now, Milliseconds unix_now) {
    DDP_CHECK(!is_closed_, next_);
    time_use_.take(event);
    saves_.take(event);
    if (whose_ == EventsOf::Job) {
        counts_.take(event);
    }
    const Milliseconds ago = std::chrono::duration_cast<Milliseconds>(now - event.at);
    keep(event_line(event, next_, unix_now - ago, limits_.event_text_bytes_max));
    return lines_.back();
}

void EventLog::keep(std::string line) {
    lines_.push_back(std::move(line));
    ++next_;
    bytes_ += lines_.back().size();
    while (lines_.size() > limits_.events_kept_max ||
           (bytes_ > limits_.events_kept_bytes_max && lines_.size() > 1)) {
        bytes_ -= lines_.front().size();
        lines_.pop_front();
    }
}

void EventLog::pass(const std::string& about, std::string line) {
    const auto [found, is_new] = passing_about_.try_emplace(about, next_passing_);
    if (!is_new) {
        passing_.erase(found->second);
        found->second = next_passing_;
    }
    passing_.emplace(next_passing_++, std::move(line));
}

void EventLog::drop_passing() {
    passing_about_.clear();
    passing_.clear();
}

const std::string& EventLog::line(std::uint64_t sequence) const {
    DDP_CHECK(sequence >= first() && sequence < next_, sequence, first(), next_);
    return lines_[static_cast<std::size_t>(sequence - first())];
}

}  // namespace ddprun::rdzv
