#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/contract/store_address.hpp"

/// Messages between agents and the rendezvous. Plain values; codec.hpp encodes them. A field that a
/// peer leaves out keeps its default; an unknown field is ignored.
namespace ddprun::rdzv {

// ---------------------------------------------------------------------------------------- values

/// How to treat nodes whose Fingerprints differ.
enum class Sameness {
    Warn,    ///< the first node of the group is told
    Strict,  ///< who differs from those that are here is refused
    Off,
};

/// How the user wants the job run. The first joiner's settings become the run's. node_sizes.hpp
/// says how many nodes a generation may have.
struct JobSettings {
    int min_nodes = 1;             ///< the smallest size of a generation
    int max_nodes = 1;             ///< the largest one
    int node_unit = 1;             ///< each size is a multiple of it, as are the two above
    std::vector<int> node_sizes;   ///< the sizes, growing, from the first to the second; empty: any
    int max_restarts = 0;          ///< budget of worker failures, for the whole run
    int max_node_losses = -1;      ///< budget of lost nodes; -1 is no bound
    int max_restarts_at_step = 3;  ///< that get no further end the run; 0: never
    bool grow = true;              ///< a newcomer makes a running smaller group re-form
    Milliseconds patience{30000};  ///< from the minimum reached to the start, first generation
    Milliseconds join_timeout{600000};     ///< waiting for the minimum
    Milliseconds grow_delay{30000};        ///< least time from a start to growing
    Milliseconds failure_grace{5000};      ///< SIGTERM to SIGKILL after a failure
    Milliseconds shutdown_timeout{30000};  ///< SIGTERM to SIGKILL when draining
    Milliseconds hang_timeout{0};          ///< workers quiet for so long hang; 0: never
    bool learns_hang_timeout = false;      ///< each agent finds it out; then the above is 0
    bool store_admits_any = false;         ///< the workers' store answers who is no member, too
    Sameness same = Sameness::Warn;        ///< whether nodes may differ
    int memory_replicas = 0;  ///< copies on other nodes of what a node's memory keeps: 0 or 1

    bool operator==(const JobSettings&) const = default;
};

/// Versions that a node's workers are made of, each in a word. Empty: unknown, and equals any.
struct Fingerprint {
    std::string program;  ///< a hash of its file
    std::string python;   ///< implementation and version
    std::string torch;
    std::string nccl;
    std::string driver;  ///< NVIDIA's

    bool operator==(const Fingerprint&) const = default;
};

/// A generation whose workers (may) live on a node that joins: it was cut off, not restarted. With
/// what its Start said, from which a rendezvous without memory learns of the run.
struct HeldGeneration {
    Generation generation;
    std::string digest;
    int group_rank = 0;
    int group_world_size = 1;
    int base_rank = 0;
    int world_size = 1;
    int restart_count = 0;
    int node_losses = 0;
    StoreAddress store;

    bool operator==(const HeldGeneration&) const = default;
};

/// How a worker ended. Exactly one of exit_code, signal, exec_errno says it; the others are unset,
/// and all of them of one that hung.
struct Evidence {
    int pid = 0;
    std::optional<int> exit_code;
    std::optional<int> signal;
    std::optional<int> exec_errno;  ///< the program could not be started at all
    bool core_dumped = false;
    bool keeper_lost = false;   ///< it died with the keeper, not by itself
    bool hung = false;          ///< it was ended because its generation hung
    Milliseconds quiet_for{0};  ///< of one that hung: since its node's last sign of life
    Milliseconds age{0};        ///< from the death to the sending of the report
    std::string program;        ///< argv[0], for the exec case
    std::string stderr_tail;    ///< any bytes
    std::string stdout_tail;    ///< any bytes
    std::string error_file;     ///< content of the worker's error.json, any bytes
    std::string log_dir;        ///< on the node
    std::string kernel_note;    ///< what the node's kernel logged about it, a line
    std::string stacks;         ///< on the node: the folder with its workers' stacks
    std::optional<std::uint64_t> progress;  ///< the last step that it told through its page

    bool operator==(const Evidence&) const = default;
};

struct FailureReport {
    Generation generation;
    Rank rank;
    LocalRank local_rank;
    std::string hostname;
    NodeId node;
    Milliseconds at{0};  ///< since the first join; 0: not told
    Evidence evidence;

    bool operator==(const FailureReport&) const = default;
};

/// A line of the table of all ranks that failed in the generation that ended the run.
struct FailedRank {
    std::string hostname;
    Rank rank;
    std::string end;     ///< in a word or two: "exit code 17", "SIGSEGV"
    int exit_code = 1;   ///< of a ddprun, if this failure had been the first
    Milliseconds at{0};  ///< since the first join
    std::string cause;   ///< the line that says most about it; empty: it said nothing

    bool operator==(const FailedRank&) const = default;
};

/// One line of the summary of a run.
struct TimelineEvent {
    Milliseconds at{0};  ///< since the first join
    std::string text;

    bool operator==(const TimelineEvent&) const = default;
};

enum class StopCause {
    Failure,  ///< a worker or a node died: failure_grace
    Hang,     ///< all workers are quiet: their stacks are saved, then as for a failure
    Grow,     ///< newcomers wait: workers are asked to save
    Leave,    ///< a node is to leave, or an operator wants a restart: workers are asked to save
    Fenced,   ///< the generation is no longer the run's: its workers must go at once
};

enum class VerdictKind {
    Succeeded,
    Failed,
    Stopped,     ///< every node left as it was told
    Incomplete,  ///< nodes are missing
    Ended,       ///< by an operator
};

/// Which nodes run a command before the first workers.
enum class Prepares {
    Nobody,
    Node,     ///< this node, and each other one that says so
    Job,      ///< one node of those that say so
    JobHere,  ///< this node, which has begun; the rendezvous may be another than the one that asked
};

/// Moments that all workers of a generation reach, one after the other.
enum class Moment { Spawned, Main, GroupReady, Resumed, FirstStep };

/// The last worker of a node has come to it.
struct ReachedMoment {
    Moment what = Moment::Spawned;
    LocalRank last;                     ///< that worker
    Milliseconds age{0};                ///< from the moment to the sending
    std::optional<std::uint64_t> step;  ///< FirstStep: its number
    /// No worker reported it: it follows from what the workers' store saw, or from output. Then it
    /// is of all nodes, and only the one with the store reports it.
    bool is_estimated = false;

    bool operator==(const ReachedMoment&) const = default;
};

enum class RankPhase { Spawned, Main, GroupReady, Resumed, Training, Finished, Failed };

/// Activity of the main thread of a worker's process when the node looked.
enum class Activity {
    Unknown,
    Computes,       ///< on a CPU, or ready for one
    Sleeps,         ///< until a time that it has set
    Waits,          ///< for another thread, process or machine
    WaitsForStore,  ///< for an answer of the workers' store
    Blocked,        ///< in the kernel, where no signal reaches it: a disk, a network file system, a
                    ///< driver
    Stopped,        ///< by SIGSTOP or a debugger
};

/// How far one worker is, as its agent sees it. A field that is not set is not known.
struct RankProgress {
    LocalRank local_rank;
    RankPhase phase = RankPhase::Spawned;
    Activity activity = Activity::Unknown;
    std::optional<std::uint64_t> output_age_ms;      ///< since it last wrote to stdout or stderr
    std::optional<std::uint64_t> step;               ///< the last one that it has told
    std::optional<std::uint64_t> step_age_ms;        ///< since then
    std::optional<std::uint64_t> step_ns;            ///< a step takes so long, of late
    std::optional<std::uint64_t> own_ns;             ///< of that: it did not wait for other ranks
    std::optional<std::uint64_t> memory_bytes;       ///< of the machine's memory, resident
    std::optional<std::uint64_t> memory_peak_bytes;  ///< the most of that so far
    std::optional<int> gpu_permille;                 ///< its GPUs were at work so much
    std::optional<std::uint64_t> gpu_memory_bytes;   ///< of its GPUs, in use by anybody
    std::optional<std::uint64_t> gpu_memory_total_bytes;  ///< that they have
    std::optional<std::uint64_t> gpu_milliwatts;          ///< that they draw
    std::optional<std::uint64_t> steps;                   ///< that this process has done
    std::optional<std::uint64_t> samples;                 ///< that it has trained on in these
    std::optional<std::uint64_t> log_bytes;  ///< that it has written to stdout and stderr

    bool operator==(const RankProgress&) const = default;
};

/// Which text of a node's workers a reader wants.
enum class WorkersText { Logs, Stacks };

// ---------------------------------------------------------------------- agent to the rendezvous

/// The first message of a connection, unless it is Unfit.
struct Join {
    static constexpr std::string_view kType = "join";

    JobId job;
    NodeId node;
    std::string process;  ///< names this ddprun: another one on the same node has another name
    std::string hostname;
    int slots = 1;
    std::string role = "default";
    std::optional<int> node_rank;        ///< explicit place wish; duplicates are refused
    std::string topology_key;            ///< sorts nodes that are near each other together
    std::string containment;             ///< of its workers, a word of kContainmentNames
    std::vector<std::string> addresses;  ///< of all interfaces, for the store's admission
    StoreAddress store;                  ///< bound and listening already, for the next generation
    JobSettings settings;
    std::string run_token;  ///< of the run this node belongs to; empty for a stranger
    std::optional<HeldGeneration> held;
    Generation newest;  ///< the highest number this ddprun has heard of, in any life of the job
    std::string unreachable;  ///< a daemon that did not answer: no use in being sent there
    /// Which node has to prepare before this node can have workers; Prepare says when it is to.
    /// Prepares::Nobody: this ddprun has prepared already, or need not.
    Prepares prepares = Prepares::Nobody;
    Fingerprint fingerprint;
    bool tells_progress = false;  ///< it knows Watch
    bool shows_workers = false;   ///< it knows ReadWorkers
    bool hears_events = false;    ///< it was started with --notify, and knows Happened
    /// So many workers does the store of a generation serve if they reach it as this node's do. 0:
    /// not told, or no bound.
    int workers_max = 0;

    bool operator==(const Join&) const = default;
};

/// A worker exited 0 before its agent was told to stop.
struct WorkerFinished {
    static constexpr std::string_view kType = "worker_finished";

    Generation generation;
    LocalRank local_rank;

    bool operator==(const WorkerFinished&) const = default;
};

struct WorkerFailed {
    static constexpr std::string_view kType = "worker_failed";

    Generation generation;
    LocalRank local_rank;
    Evidence evidence;

    bool operator==(const WorkerFailed&) const = default;
};

/// No process of `generation` is left on this node, and `store` listens for the next one.
/// Generation 0 answers Prepare: it is done.
struct Stopped {
    static constexpr std::string_view kType = "stopped";

    Generation generation;
    StoreAddress store;
    Milliseconds ended_age{0};  ///< from the end of its last worker, or the kill, to the sending
    Milliseconds empty_age{0};  ///< from the proof that nothing is left to the sending

    bool operator==(const Stopped&) const = default;
};

/// No worker that runs here has shown a sign of life for so long that it hangs, as far as this node
/// knows. Sent when it begins and when it is over.
struct Quiet {
    static constexpr std::string_view kType = "quiet";

    Generation generation;
    Milliseconds quiet_for{0};  ///< 0: one shows signs of life again

    bool operator==(const Quiet&) const = default;
};

/// A sign that workers live and go nowhere, about which nothing is done (--hang-notice).
struct HangSeen {
    std::optional<Rank> rank;           ///< the one that all others wait for, as far as is known
    std::optional<std::uint64_t> step;  ///< the last one that it has told
    std::string host;                   ///< its node, as the sign names it
    std::string collective;             ///< what it has not launched; empty: not known
    std::string text;                   ///< one line without an end, for people
    /// Each node looks so often for this sign, at its own workers; 0: it is a sign of the whole job
    Milliseconds looks_every{0};

    bool operator==(const HangSeen&) const = default;
};

/// How the saves go that one worker leads. The numbers count from the start of its generation.
struct SavesSeen {
    LocalRank local_rank;
    std::uint64_t saved = 0;   ///< saves that are complete
    std::uint64_t step = 0;    ///< of the last of these, as the next five
    std::uint64_t bytes = 0;   ///< that all ranks have saved
    Milliseconds stall{0};     ///< training stood still so long for it
    Milliseconds took{0};      ///< from its begin until it was complete
    Milliseconds age{0};       ///< from then to the sending
    std::uint64_t places = 0;  ///< bits kSavePlace… of worker_page.hpp
    std::uint64_t failed = 0;  ///< saves that have failed
    std::uint64_t failed_step = 0;
    Milliseconds failed_age{0};
    std::string failed_reason;  ///< one line for people; empty: the worker has told none
    std::string behind;         ///< why saves fall behind, one line for people; empty: they do not

    bool operator==(const SavesSeen&) const = default;
};

/// Moments that this node's workers reached since the last report. Only if it hears_moments.
struct Reached {
    static constexpr std::string_view kType = "reached";

    Generation generation;
    std::vector<ReachedMoment> moments;  ///< of each at most one
    Milliseconds checkpointing{0};       ///< one of them has spent so long in that, the others less
    std::optional<std::uint64_t> step;   ///< the last one that any of them has told
    std::optional<HangSeen> hang;        ///< at most once a generation
    std::optional<SavesSeen> saves;      ///< if there is news of them

    bool operator==(const Reached&) const = default;
};

/// Memory of a machine, or of the cgroup that limits its processes.
struct HostMemory {
    std::uint64_t bytes = 0;  ///< in use that cannot be had back at once
    std::uint64_t limit_bytes = 0;
    std::optional<int> pressure_permille;  ///< of the last 10 s, all processes waited for memory

    bool operator==(const HostMemory&) const = default;
};

/// Requests of one kind that a workers' store has answered.
struct StoreOperations {
    std::string operation;      ///< "get"
    std::uint64_t count = 0;    ///< all of them
    std::uint64_t timed = 0;    ///< of these: a sample
    std::uint64_t time_ns = 0;  ///< that those took together

    bool operator==(const StoreOperations&) const = default;
};

/// How far the workers of this node are. Only while Watch wants it.
struct Progress {
    static constexpr std::string_view kType = "progress";

    Generation generation;
    std::vector<RankProgress> ranks;
    std::optional<HostMemory> memory;
    std::vector<StoreOperations> store;  ///< of the node that has it
    std::string log_lost;  ///< what could not be written to logs, for people; empty: all could

    bool operator==(const Progress&) const = default;
};

/// A piece of what ReadWorkers asked for: whole lines, at most as many bytes as it said. The next
/// one is not sent before ReadOn.
struct WorkersRead {
    static constexpr std::string_view kType = "workers_read";

    std::uint64_t reader = 0;
    std::string bytes;  ///< any bytes
    bool is_last = false;
    std::string error;  ///< the last one: why there is no more; empty: that was all

    bool operator==(const WorkersRead&) const = default;
};

/// This node was told by `signal` to leave the job.
struct Leave {
    static constexpr std::string_view kType = "leave";

    int signal = 0;
    Milliseconds within{0};  ///< its workers have so long; 0: as the job's settings say

    bool operator==(const Leave&) const = default;
};

/// A worker of `generation` could not be killed: this node is of no use any more.
struct Unkillable {
    static constexpr std::string_view kType = "unkillable";

    Generation generation;

    bool operator==(const Unkillable&) const = default;
};

/// The agent goes for good; the end of its connection is no death.
struct Goodbye {
    static constexpr std::string_view kType = "goodbye";

    std::string unfit;  ///< what its own check found wrong with the machine; empty: nothing
    /// How its command for Prepare has failed; empty: it has not. The exit code is meant for the
    /// job.
    std::string unprepared = {};
    int exit_code = 0;

    bool operator==(const Goodbye&) const = default;
};

/// The first and only message of a connection, instead of a Join: what runs before a node joins
/// found it not fit, and it goes for good. Answered by Refused. Nothing of it is a part of a Join,
/// for a rendezvous that does not know of it must not take the node.
struct Unfit {
    static constexpr std::string_view kType = "unfit";

    JobId job;
    NodeId node;
    std::string process;  ///< as in Join, as is the next
    std::string hostname;
    std::string run_token;    ///< as in Join: this ddprun had been in the run, and was cut off
    std::string why;          ///< as Goodbye::unfit
    std::string unreachable;  ///< as in Join

    bool operator==(const Unfit&) const = default;
};

struct Beat {
    std::uint64_t sequence = 0;

    bool operator==(const Beat&) const = default;
};

// ---------------------------------------------------------------------- rendezvous to the agent

/// The join counts. `lease` 0 means that no beats are wanted (same process).
struct Accepted {
    static constexpr std::string_view kType = "accepted";

    std::string run_token;
    Milliseconds lease{0};
    Milliseconds beat_interval{0};
    /// A supervisor keeps this daemon running: it comes back by itself, and no ddprun needs to
    /// start one.
    bool is_lasting = false;
    bool keeps_sizes = false;  ///< it knows node_unit and node_sizes, which others would overlook
    bool compares_nodes = false;  ///< it knows what is asked by Sameness, which others overlook
    bool names_partners = false;  ///< it knows memory_replicas, which others would overlook
    bool hears_moments = false;   ///< it knows Reached
    bool tells_events = false;    ///< it knows Join::hears_events

    bool operator==(const Accepted&) const = default;
};

/// The join does not count; the connection is closed next.
struct Refused {
    static constexpr std::string_view kType = "refused";

    std::string text;
    int exit_code = 1;

    bool operator==(const Refused&) const = default;
};

/// Why this node waits, sent when the reason changes. `text` has no trailing punctuation.
struct Waiting {
    static constexpr std::string_view kType = "waiting";

    std::string text;
    Milliseconds waited{0};   ///< so far, of the next
    Milliseconds limit{0};    ///< then it is given up; 0: waits for ever
    Milliseconds over_in{0};  ///< then what the text announces happens; 0: not known

    bool operator==(const Waiting&) const = default;
};

/// A line for the console of a node that need not wait: what the run can no longer promise.
struct Notice {
    static constexpr std::string_view kType = "notice";

    std::string text;

    bool operator==(const Notice&) const = default;
};

/// Asks for Progress every `interval`, for so long, because a user watches. Repeated while a user
/// does; only sent to nodes that have joined with tells_progress.
struct Watch {
    static constexpr std::string_view kType = "watch";

    Milliseconds interval{0};
    Milliseconds lasts{0};

    bool operator==(const Watch&) const = default;
};

/// Asks what the workers of this node have written, or where they are; the answer is WorkersRead.
/// The node sends nothing of it unasked. Only sent to nodes that have joined with shows_workers.
struct ReadWorkers {
    static constexpr std::string_view kType = "read_workers";

    std::uint64_t reader = 0;  ///< names this one; of the connection
    WorkersText what = WorkersText::Logs;
    std::optional<int> rank;                  ///< none: all of this node
    std::optional<std::uint64_t> generation;  ///< none: each rank's newest
    std::string pattern;                      ///< an extended regular expression; empty: every line
    std::optional<int> last_lines;            ///< of each log, to begin with; none: all
    bool follows = false;    ///< what is written from now on, too, until the run is over
    int piece_bytes = 4096;  ///< of one answer; longer lines are cut

    bool operator==(const ReadWorkers&) const = default;
};

/// The last piece has been taken: one more may be sent.
struct ReadOn {
    static constexpr std::string_view kType = "read_on";

    std::uint64_t reader = 0;
    bool stops = false;  ///< no piece is wanted any more; there is no answer

    bool operator==(const ReadOn&) const = default;
};

/// An event for --notify: sent to one node that has joined with hears_events.
struct Happened {
    static constexpr std::string_view kType = "happened";

    std::string event;  ///< an object in JSON: notified_text() of rendezvous/events

    bool operator==(const Happened&) const = default;
};

/// This daemon does not lead: join at `endpoint` (HOST:PORT; empty: try any). The connection is
/// closed next.
struct Redirect {
    static constexpr std::string_view kType = "redirect";

    std::string endpoint;

    bool operator==(const Redirect&) const = default;
};

/// Run the command that Join::prepares was about; answered by Stopped of generation 0, or Goodbye.
/// Said again after each join that leaves it open.
struct Prepare {
    static constexpr std::string_view kType = "prepare";

    bool operator==(const Prepare&) const = default;
};

/// The member's own row of the rank map. Nothing here grows with the number of nodes, except
/// `admitted`, which only group rank 0 gets.
struct Start {
    static constexpr std::string_view kType = "start";

    Generation generation;
    std::string digest;
    int group_rank = 0;
    int group_world_size = 1;
    int base_rank = 0;
    int world_size = 1;
    int target_world_size = 0;  ///< of the largest size; 0: an older rendezvous does not send it
    int role_base_rank = 0;
    int role_world_size = 1;
    int restart_count = 0;  ///< the run's charged worker restarts
    int max_restarts = 0;
    int node_losses = 0;  ///< the run's charged node losses
    StoreAddress store;   ///< MASTER_ADDR and MASTER_PORT; port 0: where the rendezvous is
    std::vector<std::string> admitted;
    /// The group rank of the node that holds a copy of what this node's memory keeps. Unset
    /// without memory_replicas, and if no other node has a place.
    std::optional<int> memory_partner;
    std::string why;  ///< one line for the console, empty for the first

    bool operator==(const Start&) const = default;
};

/// Stop the workers of `generation`, prove that none is left, answer Stopped.
struct Stop {
    static constexpr std::string_view kType = "stop";

    Generation generation;
    StopCause cause = StopCause::Failure;
    int signal = 15;           ///< to be sent first
    Milliseconds grace{5000};  ///< from that signal to SIGKILL
    /// Another node's workers are gone by then: what all of them save together has to be saved.
    /// 0: no node goes sooner.
    Milliseconds within{0};
    std::string why;

    bool operator==(const Stop&) const = default;
};

/// The node that asked to leave may go; its workers are gone and the run goes on without it.
struct Released {
    static constexpr std::string_view kType = "released";

    bool operator==(const Released&) const = default;
};

/// The run is closed. Members without workers left say Goodbye and exit with `exit_code`.
struct Verdict {
    static constexpr std::string_view kType = "verdict";

    VerdictKind kind = VerdictKind::Succeeded;
    int exit_code = 0;
    std::string text;
    std::optional<FailureReport> first_failure;
    int failure_count = 0;             ///< all failures reported in the last generation
    std::vector<FailedRank> failures;  ///< the earliest of these, at most failures_shown_max
    std::vector<TimelineEvent> timeline;
    Milliseconds age{0};  ///< from the decision to the sending

    bool operator==(const Verdict&) const = default;
};

struct Acknowledge {
    std::uint64_t sequence = 0;

    bool operator==(const Acknowledge&) const = default;
};

using AgentMessage = std::variant<Join, WorkerFinished, WorkerFailed, Quiet, Reached, Progress,
                                  WorkersRead, Stopped, Leave, Unkillable, Goodbye, Unfit, Beat>;
using RendezvousMessage =
    std::variant<Accepted, Refused, Waiting, Notice, Watch, Happened, ReadWorkers, ReadOn, Redirect,
                 Prepare, Start, Stop, Released, Verdict, Acknowledge>;

}  // namespace ddprun::rdzv
