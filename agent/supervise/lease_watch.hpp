#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/instant.hpp"

namespace ddprun::agent {

/// How long this node may count on being believed alive. The rendezvous reckons a lease from the
/// moment a beat reaches it, which this side cannot know; so it is reckoned here from the moment
/// the answered beat was sent, and is over a fifth earlier. No clock of its own: its result is a
/// moment, which holds for workers whose agent is held up too.
class LeaseWatch {
public:
    /// A join was accepted. `said_at`: when something was sent that this answer proves to have
    /// arrived; none: only the answer to a beat counts. If no `lease` was ever more than 0, it
    /// holds for ever: the rendezvous is in this process.
    void begin(Milliseconds lease, std::optional<Instant> said_at);

    /// The connection is gone.
    void end();

    void beat_sent(std::uint64_t sequence, Instant now);
    void acknowledged(std::uint64_t sequence);

    /// Instant::max() if it never ends, Instant::min() if there is none.
    [[nodiscard]] Instant held_until() const;

    /// Beats whose answers could still prove something: a handful.
    [[nodiscard]] std::size_t unanswered_count() const { return unanswered_.size(); }

private:
    struct Beat {
        std::uint64_t sequence = 0;
        Instant sent_at{};
    };

    [[nodiscard]] Duration trusted() const;

    Milliseconds lease_{0};
    std::optional<Instant> confirmed_at_;
    std::deque<Beat> unanswered_;  ///< none that is too old to matter
};

}  // namespace ddprun::agent
