#pragma once

#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/limits.hpp"

namespace ddprun::agent {

/// Decides when a wait is explained to the user: after Limits::say_waiting_after, then every
/// say_waiting_every, and on a change, but never two within say_waiting_after. A wait whose end is
/// known is explained once, and again only when it lasts longer.
class WaitNotice {
public:
    explicit WaitNotice(const Limits& limits)
        : first_after_(limits.say_waiting_after), every_(limits.say_waiting_every) {}

    /// Takes the present wait; empty: nothing. `over_at` is when that will be over, if it is known.
    void update(Instant now, const std::string& text, std::optional<Instant> over_at = {});

    /// The text, if it is due at `now`; once.
    [[nodiscard]] std::optional<std::string> take_due(Instant now);

    [[nodiscard]] std::optional<Instant> next_deadline() const;

private:
    Duration first_after_;
    Duration every_;
    std::string text_;
    Instant due_{};
    std::optional<Instant> over_at_;  ///< of this wait
    std::optional<Instant> said_at_;  ///< within this wait
};

}  // namespace ddprun::agent
