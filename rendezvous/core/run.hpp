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
#include "rendezvous/core/departures.hpp"
#include "rendezvous/core/forming.hpp"
#include "rendezvous/core/generation.hpp"
#include "rendezvous/core/nodes.hpp"
#include "rendezvous/core/parked.hpp"
#include "rendezvous/core/preparing.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/restored.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/sameness.hpp"
#include "rendezvous/core/silence.hpp"
#include "rendezvous/core/stopping.hpp"
#include "rendezvous/core/strangers.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// An operator lets no generation start before `until`.
struct Hold {
    Instant until{};
    Milliseconds asked{0};  ///< for how long
    std::string by;
};

using Phase = std::variant<Forming, Running, Stopping, Closed, Adopting, Restored>;

/// One life of the job, from the first join to the verdict. Its parts keep their own invariants;
/// the phases decide. The simulator's checkers and status pages read it.
struct Run {
    std::string token;  ///< names this run; members present it when they reconnect
    JobSettings settings;
    Instant opened_at{};

    Phase phase;
    CurrentGeneration current;
    Nodes nodes;
    Budgets budgets;
    RestartPace pace;
    QuarantineList quarantined;
    Doubt doubt;

    Preparation preparation;

    // Nodes that come and go.
    std::uint64_t joins = 0;
    Departures departing;
    std::set<NodeId> departed;  ///< left or said goodbye, at most nodes_max

    // Orders that operators have given.
    std::optional<Hold> hold;
    std::optional<int> target_nodes;  ///< no more than these; one of the sizes

    // Sizes of all nodes that have joined.
    int slots_max = 1;    ///< the most that one has
    int workers_max = 0;  ///< the fewest that the workers' store serves; 0: no bound is known

    // Decisions that an earlier daemon may have made.
    bool may_be_older = false;  ///< this process knows of no earlier run of the job
    Generation adopted_up_to;   ///< older generations that nodes hold are no news
    Parked parked;              ///< wait until it is known which run goes on
    /// A node is back to a restored run: the others may come, with newer news, until then.
    Instant returns_until{};

    // News for people.
    std::vector<TimelineEvent> timeline;
    std::string not_durable;  ///< why the journal has not the last record; empty
    DifferencesTold differences_told;
    std::string turned_away;                ///< why the last one was, since a generation ran
    Strangers strangers;                    ///< since a generation began
    std::map<NodeId, std::string> lost;     ///< members of the last generation, and how
    std::string said_waiting;               ///< the last explanation published
    std::optional<Instant> explain_at;      ///< when waiting nodes are told why, at the latest
    Instant explained_at = Instant::min();  ///< the last time
};

[[nodiscard]] bool is_closed(const Run& run);
[[nodiscard]] std::size_t minimum(const Run& run);  ///< --nnodes MIN
/// The smaller of two bounds, of which 0 means no bound.
[[nodiscard]] int smaller_bound(int one, int other);
/// Counts this node's slots and its bound of workers from now on.
void learn_size(Run& run, const Join& join);
/// --nnodes MAX, or what an operator wants, if the workers' store serves so many nodes as large as
/// the largest that is here; the minimum in any case.
[[nodiscard]] std::size_t maximum(const Run& run);
/// The workers' store serves no more nodes than that, though more are asked for.
[[nodiscard]] bool is_bound_by_store(const Run& run);
/// The next one above `nodes` that a generation may have; none: that is the largest.
[[nodiscard]] std::optional<std::size_t> larger_size(const Run& run, std::size_t nodes);
[[nodiscard]] bool is_held(const Run& run, Instant now);  ///< by an operator

}  // namespace ddprun::rdzv
