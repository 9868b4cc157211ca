#pragma once

#include <optional>
#include <string>

#include "agent/contract/leave_notice.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"

namespace ddprun::agent {

/// When this node has to be gone, from all that says so, and when its workers are asked to leave
/// for that. The earliest counts. Pure; owned by the Supervisor.
class LeaveDeadlines {
public:
    /// `kill_wait`: the sender of SIGTERM kills so much later; none: that is not known.
    LeaveDeadlines(const Limits& limits, Milliseconds shutdown_timeout,
                   std::optional<Milliseconds> kill_wait);

    void add(Instant now, const LeaveNotice& notice);

    /// SIGTERM has come.
    void take_sigterm(Instant now);

    /// The workers have left, `took` after they were asked to.
    void learn_saving(Duration took) { saving_ = took; }

    /// As learned last; none: nothing was.
    [[nodiscard]] std::optional<Duration> saving() const { return saving_; }

    /// When a drain is due; none: nothing asks for one. While the workers are drained for another
    /// reason it is due sooner: those that started after it would be asked at once.
    [[nodiscard]] std::optional<Instant> due_at(bool is_draining) const;

    /// True if the notice that makes the drain due was to be expected.
    [[nodiscard]] bool is_planned() const { return first_due_ && first_due_->notice.is_planned; }

    /// Returns the notice that makes the drain due, for people: with the time that is left.
    [[nodiscard]] std::string why(Instant now) const;

    /// How much of `grace` there is before the node is gone. The rest is for killing workers that
    /// stayed, the proof and the goodbye: Limits::leave_reserve, or half of all.
    [[nodiscard]] Duration within(Instant now, Duration grace) const;

private:
    struct Known {
        LeaveNotice notice;
        Instant since{};
    };

    [[nodiscard]] Duration lead(const Known& known) const;
    [[nodiscard]] Instant due_at(const Known& known, bool is_draining) const;

    Duration reserve_;
    Duration shutdown_timeout_;
    std::optional<Milliseconds> kill_wait_;
    std::optional<Duration> saving_;  ///< the last time
    std::optional<Known> first_due_;
    std::optional<Instant> gone_at_;  ///< the earliest
};

}  // namespace ddprun::agent
