#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// What a node is to the run at the moment.
enum class Standing {
    Ready,    ///< no workers, a store socket open: may be taken into the next generation
    Unready,  ///< came back with workers of a generation that is over; they must go first
    Member,   ///< belongs to the current generation
};

struct Node {
    Join info;
    Standing standing = Standing::Ready;
    std::uint64_t joined_as = 0;             ///< order of joining within the run
    std::optional<ConnectionId> connection;  ///< none: cut off, believed alive until its lease ends
    Instant last_heard{};                    ///< its last sign of life
    Duration held_up_before{};               ///< Run::held_up_for then
    Instant lease_end{};                     ///< meaningless without leases
    std::set<LocalRank> finished;            ///< ranks of the current generation that exited 0
    std::set<LocalRank> failed;              ///< those of it that were reported as failed
    Duration quiet_for{};                    ///< as it said; meaningful while in Running::quiet
    Instant quiet_since{};                   ///< as above
    std::optional<int> leaving;              ///< the signal that told it to leave
    std::string said_waiting;                ///< the last explanation sent
};

}  // namespace ddprun::rdzv
