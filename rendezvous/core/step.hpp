#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
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
/// The run goes into `next`. Every change of phase comes through here: which phase may follow which
/// is checked.
void become(Run& run, Phase next);
/// This step's change must survive the process; what a record misses, agents say again.
void write_behind(Step& step);
/// This step's change must be durable before anybody is told: what is sent from here on waits.
void await_record(Step& step);
[[nodiscard]] Node* find_node(Run& run, const NodeId& id);
[[nodiscard]] bool is_closed(const Run& run);
[[nodiscard]] std::size_t minimum(const Run& run);                 ///< --nnodes MIN
[[nodiscard]] std::size_t maximum(const Run& run);                 ///< --nnodes MAX
[[nodiscard]] std::string node_count(std::size_t count);           ///< "1 node", "3 nodes"
[[nodiscard]] std::string nnodes_of(const JobSettings& settings);  ///< "2" or "1:3"

// admission.cpp: who comes, and comes back.
/// Why no run may be opened or joined with `message`, whatever its state; empty if it makes sense.
[[nodiscard]] std::string fault_of(const Join& message, const Limits& limits);
void refuse(Effects& out, ConnectionId connection, const std::string& text, int exit_code);
void join(Step& step, ConnectionId connection, const Join& message);
/// `connection` is the node's voice from now on, and is told so.
void attach(Step& step, const NodeId& id, Node& node, ConnectionId connection);
/// Numbers that a daemon before this one has used are not used again.
void learn_numbers(Run& run, const Join& message);
/// No job comes to so many generations: a larger number in a join is not believed.
[[nodiscard]] inline bool is_believable(Generation generation) {
    return generation.value() < std::uint64_t{1} << 48;
}

// membership.cpp: who is here, and who goes.
void beat(Step& step, ConnectionId connection, const Beat& message);
void leave(Step& step, ConnectionId connection, const Leave& message);
void goodbye(Step& step, ConnectionId connection, const Goodbye& message);
void connection_ended(Step& step, const ConnectionEnded& input);
void held_up(Step& step, Duration by);
void judge_leases(Step& step);
/// When judge_leases() wants to be called; none while no silence can be judged.
[[nodiscard]] std::optional<Instant> leases_deadline(const Run& run, const Limits& limits,
                                                     Instant now);
void judge_departures(Step& step);
/// From now on the connection may end by itself within the time that stopping takes.
void depart(Step& step, ConnectionId connection, const NodeId& id);
void renew_lease(Step& step, const NodeId& id, Node& node);
/// The node's connection, if any, is no longer its voice and is closed; the caller reindexes.
void drop_connection(Step& step, Node& node, const std::string& why);
/// The node goes for good; `unfit` as in Goodbye.
void gone_for_good(Step& step, const NodeId& id, const std::string& unfit);
/// Removes a node that is dead or superseded; a member's loss stops the generation.
void lose_node(Step& step, const NodeId& id, const std::string& how);
/// The same for a silent one, which died when it was last heard.
void lose_silent_node(Step& step, const NodeId& id, const std::string& how);
/// Sends Released and forgets the node.
void release(Step& step, const NodeId& id);

/// How long a generation that this process has not seen begin may have run.
inline constexpr std::chrono::hours kLongAgo{24 * 365};

// adoption.cpp: a run that this process has not seen begin.
/// True if `message` tells of a generation that this run should know and does not.
[[nodiscard]] bool is_news_of_generation(const Run& run, const Join& message, const Limits& limits,
                                         Instant now);
/// Says in the log what a node says of its generation, if that cannot be.
void trace_implausible(Step& step, const Join& message);
/// All that were here have to join again; nothing changes if that is so already.
void enter_adopting(Step& step);
void adopt_if_possible(Step& step);
/// When adopt_if_possible() wants to be called.
[[nodiscard]] Instant adopting_deadline(const Adopting& adopting, Instant now);

// restored.cpp: a run from the journal to which nobody has come back.
/// `recorded` waits in it; the nodes are there, and all are cut off.
[[nodiscard]] Restored restored_at(Instant now, std::variant<Forming, Running, Stopping> recorded,
                                   const Limits& limits);
/// A node of the run is back: what was recorded goes on, and the others have a whole grace.
void leave_restored(Step& step);
/// True if a stranger needs the job's name, or no agent can come back any more.
[[nodiscard]] bool is_given_up(const Run& run, const Restored& restored, Instant now);
/// When is_given_up() changes.
[[nodiscard]] Instant restored_deadline(const Run& run, const Restored& restored);
void hold_up(Restored& restored, Duration by);

// record.cpp: what survives the process.
[[nodiscard]] RunRecord record_of(const JobId& job, const Run& run, Instant now);
/// Empty if `record` makes a run.
[[nodiscard]] std::string flaw_of(const RunRecord& record);
[[nodiscard]] std::unique_ptr<Run> run_of(const RunRecord& record, const Limits& limits,
                                          Instant now);

// quarantine.cpp: nodes that keep failing, or are not fit.
void blame(Step& step, const NodeId& id, const std::string& hostname);
/// Nothing happens while the others would not suffice.
void quarantine_if_dispensable(Step& step, const NodeId& id, const std::string& hostname,
                               const std::string& why);
/// For `why`, which a node found wrong with itself. True if that is news.
bool quarantine_unfit(Step& step, const NodeId& id, const std::string& hostname,
                      const std::string& why);
/// Nodes that said so instead of joining: a stranger goes into quarantine, a node of the run that
/// said so itself is lost, and one that has its name from another ddprun stays what it is.
void judge_unfit(Step& step, const std::vector<Unfit>& told);
[[nodiscard]] bool is_quarantined(const Run& run, const NodeId& id, Instant now);
/// Ready nodes that are not in quarantine.
[[nodiscard]] std::size_t healthy_count(const Run& run, Instant now);
/// How many of the ready nodes the next generation may be made of: those in quarantine only if the
/// others do not suffice.
[[nodiscard]] std::size_t usable_count(const Run& run, Instant now);
/// When the next node leaves quarantine.
[[nodiscard]] std::optional<Instant> quarantine_end(const Run& run, Instant now);

// forming.cpp: from ready nodes to a generation.
/// Who may use the current generation's store: the members' interfaces while they go into a
/// message, else what they were reached at. Empty: everybody.
std::vector<std::string> admitted_addresses(const Run& run, const Limits& limits);
/// Fills run.rows from the rank map; info of members that are not here is taken from it.
void write_rows(Run& run);
void enter_forming(Step& step, std::string why);
void form_if_possible(Step& step);  ///< starts the next generation when its time has come
void grow_if_wanted(Step& step);    ///< in Running: drains for newcomers when their time has come
void judge_forming(Step& step);     ///< gives up when the minimum stayed missing
/// When forming or growing wants to be judged.
[[nodiscard]] std::optional<Instant> forming_deadline(const Run& run, Instant now);
/// When a running smaller group is drained for those who wait; none: never, as things are.
[[nodiscard]] std::optional<Instant> grow_time(const Run& run, const Running& running, Instant now);

// explain.cpp: what a run waits for, for people.
void explain_waits(Step& step);  ///< tells the nodes that wait what has changed
[[nodiscard]] std::string explain_run(const Run& run, Instant now);
[[nodiscard]] std::string names_here(const Run& run);  ///< of the ready nodes
/// "c is not fit (...)", of those that said so and are not here; empty if there are none.
[[nodiscard]] std::string names_unfit(const Run& run, Instant now);
/// On the console of group rank 0's node, which waits for nothing while a generation is there.
void tell_head(Step& step, const std::string& text);

// running.cpp: from a generation to its end.
/// The member that speaks on `connection`, if it speaks of the current generation; fencing (S4)
/// is that everything else changes nothing.
[[nodiscard]] Node* current_member(Step& step, ConnectionId connection, Generation generation);
void worker_finished(Step& step, ConnectionId connection, const WorkerFinished& message);
void worker_failed(Step& step, ConnectionId connection, const WorkerFailed& message);
/// `node` is erased already; it died at `died_at`.
void member_lost(Step& step, const Node& node, Instant died_at, const std::string& how);
void stopped(Step& step, ConnectionId connection, const Stopped& message);
void unkillable(Step& step, ConnectionId connection, const Unkillable& message);
void begin_stopping(Step& step, StopCause cause, int signal, const std::string& why);
void judge_stopping(Step& step);
/// How long members may take to carry out `order`.
[[nodiscard]] Duration time_to_stop(const Stop& order, const Limits& limits);

// hanging.cpp: a generation none of whose workers shows a sign of life.
void quiet(Step& step, ConnectionId connection, const Quiet& message);
/// What the node said of its workers counts no more.
void forget_quiet(Run& run, const NodeId& id);
void judge_hang(Step& step);

// ending.cpp: the verdict.
void close_run(Step& step, Verdict verdict);
void close_failed(Step& step, const Stopping& stopping);
void close_without_progress(Step& step, const Stopping& stopping);
[[nodiscard]] const TimedFailure& first_of(const Stopping& stopping);
[[nodiscard]] std::string describe_end(const Evidence& evidence);  ///< "exited with code 17"
[[nodiscard]] int exit_code_of(const Evidence& evidence);          ///< never 0
/// By time; equal times by rank, so that the order of arrival decides nothing. What hung comes
/// after what died: of these whose last step is the smallest comes first, if they told any.
[[nodiscard]] bool is_earlier(const TimedFailure& left, const TimedFailure& right);
/// The evidence as it may be kept and sent on: every field within Limits.
[[nodiscard]] Evidence trimmed(Evidence evidence, const Limits& limits);
/// Adds what a later report of the same end knows more: last words, error file, core, the kernel's
/// line. How and when the worker ended stay; nothing known is lost to a report that knows less.
void complete(Evidence& known, Evidence later);

}  // namespace ddprun::rdzv
