#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

/// How far all workers of the current generation have come. Told to who watches; nothing is decided
/// by it, and no record has it: after a reconnect nodes say it again.
namespace ddprun::rdzv {

class Node;
struct Step;

/// Which members have come to one moment.
struct MomentReached {
    std::set<NodeId> there;
    Instant at{};  ///< when the last of these workers came to it
    Rank last;     ///< that worker
    std::optional<std::uint64_t> step;
    bool is_estimated = false;  ///< one node has reported it for all: `there` is empty
};

using MomentsReached = std::map<Moment, MomentReached>;

/// A member says what its workers have come to. When they all have, that is published, once; an
/// estimate at once, unless some worker has told it.
void hear_reached(Step& step, const Node& node, const Reached& message);

/// A member's worker has saved a checkpoint, or could not, or its saves fall behind: published as
/// far as it is new.
void hear_saves(Step& step, const Node& node, const SavesSeen& seen);

}  // namespace ddprun::rdzv
