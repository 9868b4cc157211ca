#include "rendezvous/events/event_log.hpp"

#include <chrono>

#include "base/check.hpp"

namespace ddprun::rdzv {

const std::string& EventLog::add(const Event& event, Instant now, Milliseconds unix_now) {
    time_use_.take(event);
    const Milliseconds ago = std::chrono::duration_cast<Milliseconds>(now - event.at);
    lines_.push_back(event_line(event, next_, unix_now - ago, limits_.event_text_bytes_max));
    ++next_;
    if (lines_.size() > limits_.events_kept_max) {
        lines_.pop_front();
    }
    return lines_.back();
}

const std::string& EventLog::line(std::uint64_t sequence) const {
    DDP_CHECK(sequence >= first() && sequence < next_, sequence, first(), next_);
    return lines_[static_cast<std::size_t>(sequence - first())];
}

}  // namespace ddprun::rdzv
