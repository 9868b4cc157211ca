#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/adopting.hpp"
#include "rendezvous/core/budgets.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/forming.hpp"
#include "rendezvous/core/nodes.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/rank_map.hpp"
#include "rendezvous/core/restored.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/silence.hpp"
#include "rendezvous/core/stopping.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// A connection whose node has nothing more to say but Goodbye.
struct Departing {
    NodeId node;
    Instant until{};  ///< then it is closed
};

using Phase = std::variant<Forming, Running, Stopping, Closed, Adopting, Restored>;

/// One life of the job, from the first join to the verdict. Data only: coordinator.cpp and the
/// files beside it decide. The simulator's checkers and status pages read it.
struct Run {
    std::string token;  ///< names this run; members present it when they reconnect
    JobSettings settings;
    Instant opened_at{};
    Phase phase;
    Generation generation;         ///< the current one, or the last while forming
    Generation generation_floor;   ///< the highest number that any node has told: later ones follow
    Instant started_at{};          ///< it, at the earliest: no failure of it is older
    std::string digest;            ///< of its rank map
    std::vector<Place> places;     ///< its rank map, in order of group rank
    std::map<NodeId, Start> rows;  ///< what each member was sent, for one that missed it
    StoreAddress store;            ///< of the current generation
    std::vector<std::string> admitted;  ///< to it
    Budgets budgets;
    RestartPace pace;
    QuarantineList quarantined;
    std::string not_durable;    ///< why the journal has not the last record; empty
    Generation adopted_up_to;   ///< older generations that nodes hold are no news
    bool may_be_older = false;  ///< this process knows of no earlier run of the job
    /// Joins that wait, unanswered, until it is known which run goes on: each node's last one.
    std::map<ConnectionId, Join> parked;
    /// A restored run somebody is back to: the others may come, with newer news, until then.
    Instant returns_until{};
    std::vector<TimelineEvent> timeline;
    std::uint64_t joins = 0;

    Nodes nodes;
    std::map<ConnectionId, Departing> departing;  ///< told to go and still connected
    std::set<NodeId> departed;                    ///< left or said goodbye, at most nodes_max

    std::string turned_away;            ///< why the last one was, since a generation ran
    std::optional<Instant> explain_at;  ///< when waiting nodes are told why, at the latest
    Doubt doubt;
};

[[nodiscard]] bool is_closed(const Run& run);
[[nodiscard]] std::size_t minimum(const Run& run);  ///< --nnodes MIN
[[nodiscard]] std::size_t maximum(const Run& run);  ///< --nnodes MAX

}  // namespace ddprun::rdzv
