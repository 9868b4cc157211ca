#pragma once

#include <optional>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"

/// Which silence is a death: leases, and when this process rather doubts itself.
namespace ddprun::rdzv {

class Node;
struct Run;
struct Step;

/// While it lasts, silence may be this process's doing, and no node is lost to it; unless the
/// silence is longer than a stall of this process can excuse.
struct Doubt {
    std::optional<Instant> until;
    Duration held_up_for{};  ///< this process was stalled so long in all, as far as it knows
    [[nodiscard]] bool is_on(Instant now) const { return until && *until > now; }
    /// For how long this process was held up since the node was last heard.
    [[nodiscard]] Duration held_up_since_heard(const Node& node) const;
};

void renew_lease(Step& step, Node& node);
/// For a while no silence is judged: this process was away for `by`.
void doubt_silence(Step& step, Duration by);
void judge_leases(Step& step);
/// When judge_leases() wants to be called; none while no silence can be judged.
[[nodiscard]] std::optional<Instant> leases_deadline(const Run& run, const Limits& limits,
                                                     Instant now);

}  // namespace ddprun::rdzv
