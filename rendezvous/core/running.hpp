#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/hang_signs.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

class Node;
struct Run;
struct Step;

/// Every member has its row; workers live.
///
/// Reads: the members, those who wait, quarantine.
/// Changes: its own fields, and what a member has said of its ranks. A member that a former daemon
/// has let go becomes ready. No node is added, and no budget charged.
/// Leads to: Stopping (a failure, a loss, a hang, growth, a node that leaves), Closed (success),
/// Adopting (a join). These are the last thing that a function here does: `running` is gone then.
struct Running {
    Instant since{};
    std::set<NodeId> unfinished;      ///< members some of whose ranks have not exited 0
    std::set<NodeId> quiet;           ///< of those, whose workers show no sign of life, as they say
    std::optional<Instant> hangs_at;  ///< if they all stay so
    HangSigns signs;                  ///< of a hang that is only spoken of
    std::optional<Instant> finished_at;  ///< the last rank that did
    bool has_finished_rank = false;
};

/// One of the member's ranks has exited 0; the last of all ends the run. `is_news`: it had not said
/// so before.
void rank_finished(Step& step, Running& running, const Node& node, bool is_news);
/// One of the member's ranks has failed: the generation stops. Stopping keeps the failure.
void rank_failed(Step& step, const Running& running, Node& node, const WorkerFailed& message);
/// The member says that it has no worker, and was not asked: a former daemon had stopped it.
void member_emptied(Step& step, const Running& running, Node& node, const Stopped& message);
/// `node` is erased already; it died at `died_at`. The generation stops, unless nothing is missed.
void member_lost(Step& step, const Running& running, const Node& node, Instant died_at,
                 const std::string& how);
/// A member was told to leave: all drain, so that it can go.
void drain_for_leaver(Step& step, const Running& running, const Node& node, const Leave& message);

/// Takes the member's report how long its workers have shown no sign of life.
void hear_quiet(Step& step, Running& running, Node& node, const Quiet& message);
/// Forgets the node's report that its workers are quiet.
void forget_quiet(Run& run, const NodeId& id);
/// Stops the generation when all who have unfinished ranks have been quiet for long enough.
void stop_if_hung(Step& step, Running& running);

/// Takes the member's sign of a hang, which is only reported and stops no generation.
void hear_hang(Step& step, Running& running, const Node& node, const HangSeen& seen);
/// Has people told of it when its time has come.
void tell_hang(Step& step, Running& running);

/// Drains for those who wait when their time has come.
void grow_if_wanted(Step& step, const Running& running);
/// When a smaller group is drained for those who wait; none: never, as things are.
[[nodiscard]] std::optional<Instant> grow_time(const Run& run, const Running& running, Instant now);
/// When a hang, a sign of one or growth wants to be judged.
[[nodiscard]] std::optional<Instant> deadline_of(const Run& run, const Running& running,
                                                 Instant now);

}  // namespace ddprun::rdzv
