#pragma once

#include <variant>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "rendezvous/core/forming.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/stopping.hpp"

namespace ddprun::rdzv {

struct Run;
struct Step;

/// A run from the journal to which no node has come back. Perhaps it ended with the daemon:
/// strangers wait for a grace, then begin anew. Else it is kept as long as its agents may come
/// back.
///
/// Reads: the joins that wait (Run::parked).
/// Changes: its deadlines. On the way out, the recorded phase's clocks are set forward, and every
/// node has a lease again.
/// Leads to: the recorded phase, Adopting (a join). One that is given up is forgotten as a whole
/// (Coordinator).
struct Restored {
    Instant since{};
    Instant strangers_wait_until{};
    Instant kept_until{};
    /// The phase that continues, with its clocks set forward, once one of its nodes is back.
    std::variant<Forming, Running, Stopping> recorded;
};

/// `recorded` waits in it; the nodes are known, and all are cut off.
[[nodiscard]] Restored restored_at(Instant now, std::variant<Forming, Running, Stopping> recorded,
                                   const Limits& limits);
/// A node of the run is back: what was recorded goes on, and the others have a whole grace.
void leave_restored(Step& step);
/// True if a stranger needs the job's name, or no agent can come back any more.
[[nodiscard]] bool is_given_up(const Run& run, const Restored& restored, Instant now);
/// When is_given_up() changes.
[[nodiscard]] Instant deadline_of(const Run& run, const Restored& restored);
/// This process was away: so much more time.
void prolong(Restored& restored, Duration by);

}  // namespace ddprun::rdzv
