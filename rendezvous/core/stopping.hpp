#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

class Node;
struct Step;

/// Every member was told to stop; those in `pending` have not proven to be empty.
///
/// Reads: the members and the current generation.
/// Changes: its own fields, what a member has said of its ranks, and its store. A lost member is
/// blamed. When the last one is empty the budgets are charged, each cause once (S9), who failed
/// first is blamed, and members who leave go.
/// Leads to: Forming, Closed (success, failure, a budget used up), Adopting (a join). When the last
/// one is empty `stopping` is gone.
struct Stopping {
    StopCause cause = StopCause::Failure;  ///< of order, or Failure once a node was lost
    Instant since{};
    Instant give_up_at{};  ///< a node that is still pending then is lost
    Stop order;            ///< what members were told, for those that reconnect
    std::set<NodeId> pending;
    std::set<NodeId> unfinished;          ///< as in Running when the stop began
    std::vector<TimedFailure> failures;   ///< the earliest, in no order
    int failure_count = 0;                ///< all that were reported
    std::vector<std::string> lost_nodes;  ///< host names of members that are missed
    std::string loss_why;                 ///< of the first of them
    std::string ended_by;                 ///< the operator that ends the job then; empty
    bool is_explained_by_loss = false;    ///< a node went when the failures began: its doing
};

/// From Running: all members are told, and have time_to_stop(). Returns the phase that the run is
/// in then. `within`: as Stop::within.
Stopping& enter_stopping(Step& step, StopCause cause, int signal, const std::string& why,
                         Milliseconds within = Milliseconds(0));
/// How long members may take to carry out `order`.
[[nodiscard]] Duration time_to_stop(const Stop& order, const Limits& limits);

/// One of the member's ranks had exited 0 before it was stopped.
void rank_finished(Step& step, Stopping& stopping, const Node& node);
/// A failure is kept; a later report of the same worker completes it.
void rank_failed(Step& step, Stopping& stopping, Node& node, const WorkerFailed& message);
/// The member has proven to be empty.
void member_emptied(Step& step, Stopping& stopping, Node& node, const Stopped& message);
/// `node` is erased already; it died at `died_at`.
void member_lost(Step& step, Stopping& stopping, const Node& node, Instant died_at,
                 const std::string& how);
/// Members that are pending when their time is over are lost.
void lose_late_members(Step& step, const Stopping& stopping);

}  // namespace ddprun::rdzv
