#pragma once

#include <optional>
#include <string>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"

/// The transitions of a run, shared by the files of this folder. Not for other folders.
namespace ddprun::rdzv {

/// One call of Coordinator::step(): what it was given, what it may change, where effects go.
struct Step {
    const JobId& job;
    const CoordinatorOptions& options;
    Rng& rng;
    Instant now;
    Run& run;
    Effects& out;
};

// step.cpp: small things that every transition uses.
void trace(Step& step, std::string text);
void note(Step& step, std::string text);  ///< an event of the summary, traced too
void send(Step& step, const Node& node, RendezvousMessage message);
void reindex(Step& step, const NodeId& id);  ///< after any change to a node's standing
[[nodiscard]] Node* find_node(Run& run, const NodeId& id);
[[nodiscard]] std::string node_count(std::size_t count);  ///< "1 node", "3 nodes"

// membership.cpp: who is here.
void join(Step& step, ConnectionId connection, const Join& message);
void beat(Step& step, ConnectionId connection, const Beat& message);
void leave(Step& step, ConnectionId connection, const Leave& message);
void goodbye(Step& step, ConnectionId connection);
void connection_ended(Step& step, const ConnectionEnded& input);
void held_up(Step& step, Duration by);
void judge_leases(Step& step);
/// Removes a node that is dead or superseded; a member's loss stops the generation.
void lose_node(Step& step, const NodeId& id, const std::string& how);
/// Sends Released and forgets the node.
void release(Step& step, const NodeId& id);

// forming.cpp: from ready nodes to a generation.
void enter_forming(Step& step, std::string why);
void form_if_possible(Step& step);  ///< starts the next generation when its time has come
void grow_if_wanted(Step& step);    ///< in Running: drains for newcomers when their time has come
void resend_start(Step& step, const NodeId& id);  ///< to a member that missed it
void judge_forming(Step& step);     ///< gives up when the minimum stayed missing
void explain_waits(Step& step);
[[nodiscard]] std::optional<Instant> forming_deadline(const Step& step);
[[nodiscard]] std::string explain_run(const Run& run);

// running.cpp: from a generation to its end.
void worker_finished(Step& step, ConnectionId connection, const WorkerFinished& message);
void worker_failed(Step& step, ConnectionId connection, const WorkerFailed& message);
void member_lost(Step& step, const Node& node, const std::string& how);
void stopped(Step& step, ConnectionId connection, const Stopped& message);
void unkillable(Step& step, ConnectionId connection, const Unkillable& message);
void begin_stopping(Step& step, StopCause cause, int signal, const std::string& why);
void judge_stopping(Step& step);

// ending.cpp: the verdict.
void close_run(Step& step, Verdict verdict);
void close_failed(Step& step, const Stopping& stopping);
[[nodiscard]] std::string describe_end(const Evidence& evidence);  ///< "exited with code 17"
[[nodiscard]] int exit_code_of(const Evidence& evidence);

}  // namespace ddprun::rdzv
