#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/limits.hpp"

namespace ddprun::agent {

/// Notices for a target that may be slow, or away: one after the other, in order, each tried
/// Limits::notice_attempts_max times. At most Limits::notices_waiting_max wait; the oldest are
/// dropped. Pure.
class NoticeQueue {
public:
    explicit NoticeQueue(const Limits& limits) : limits_(limits) {}

    /// `what` is its word, for people.
    void add(std::string what, std::string line);

    /// The line to be delivered now, if there is one; ended() follows.
    [[nodiscard]] std::optional<std::string> begin(Instant now);

    /// Takes the outcome of the delivery; an empty `fault`: it is delivered. Returns a line for
    /// people; empty: nothing.
    [[nodiscard]] std::string ended(Instant now, const std::string& fault);

    /// When begin() may have a line again; none while it depends on others.
    [[nodiscard]] std::optional<Instant> next_deadline() const;

    /// The number of lines that are not delivered.
    [[nodiscard]] std::size_t size() const { return waiting_.size(); }

private:
    struct Waiting {
        std::string what;
        std::string line;
    };

    Limits limits_;
    std::deque<Waiting> waiting_;  ///< the first one is tried
    bool is_under_way_ = false;
    int attempts_ = 0;  ///< of the first one, that have failed
    std::optional<Instant> pause_end_;
    std::size_t dropped_ = 0;  ///< that no line has reported yet
};

}  // namespace ddprun::agent
