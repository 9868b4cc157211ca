#include "agent/supervise/leave_deadlines.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

namespace ddprun::agent {

LeaveDeadlines::LeaveDeadlines(const Limits& limits, Milliseconds shutdown_timeout,
                               std::optional<Milliseconds> kill_wait)
    : reserve_(limits.leave_reserve), shutdown_timeout_(shutdown_timeout), kill_wait_(kill_wait) {}

void LeaveDeadlines::add(Instant now, const LeaveNotice& notice) {
    if (notice.gone_at && (!gone_at_ || *notice.gone_at < *gone_at_)) {
        gone_at_ = notice.gone_at;
    }
    const Known known{.notice = notice, .since = now};
    if (!first_due_ || due_at(known, false) < due_at(*first_due_, false)) {
        first_due_ = known;
    }
}

void LeaveDeadlines::take_sigterm(Instant now) {
    if (kill_wait_) {
        gone_at_ = std::min(gone_at_.value_or(Instant::max()), now + *kill_wait_);
    }
}

/// Twice of what saving took the last time: it may take longer under load, and a disk may be slow.
Duration LeaveDeadlines::lead(const Known& known) const {
    const Duration saving = saving_ ? std::min(2 * *saving_, shutdown_timeout_) : shutdown_timeout_;
    return std::min(saving + reserve_, (*known.notice.gone_at - known.since) / 2);
}

Instant LeaveDeadlines::due_at(const Known& known, bool is_draining) const {
    if (!known.notice.is_planned || !known.notice.gone_at) {
        return known.since;
    }
    return *known.notice.gone_at - lead(known) * (is_draining ? 2 : 1);
}

std::optional<Instant> LeaveDeadlines::due_at(bool is_draining) const {
    return first_due_ ? std::optional(due_at(*first_due_, is_draining)) : std::nullopt;
}

std::string LeaveDeadlines::why(Instant now) const {
    const LeaveNotice& notice = first_due_->notice;
    if (!notice.gone_at) {
        return notice.why;
    }
    const Duration left = std::max(*notice.gone_at - now, Duration::zero());
    return fmt::format("{} in {} s", notice.why,
                       std::chrono::duration_cast<std::chrono::seconds>(left).count());
}

Duration LeaveDeadlines::within(Instant now, Duration grace) const {
    if (!gone_at_) {
        return grace;
    }
    const Duration left = std::max(*gone_at_ - now, Duration::zero());
    return std::min(grace, left - std::min(reserve_, left / 2));
}

}  // namespace ddprun::agent
