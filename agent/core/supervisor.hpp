#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/leave_deadlines.hpp"
#include "agent/core/quiet_watch.hpp"
#include "agent/core/worker_options.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Stands for the prepare command where a keeper wants the number of a generation. No workers have
/// it: rendezvous count from 1.
inline const Generation kPrepareGeneration{std::numeric_limits<std::uint64_t>::max()};

/// Somebody debugs a rank at a terminal, perhaps at another node's: silence of the workers here is
/// no hang, and none of the others here reads what is typed, or stops at a breakpoint() of
/// Python's.
struct Debugging {
    Rank rank;
    bool is_asked = false;      ///< by --debug-rank: what that does is said
    bool has_terminal = false;  ///< ddprun here, for the rank if it is here
};

/// What one agent is told once, by the launcher.
struct SupervisorOptions {
    Limits limits;
    rdzv::Join identity;  ///< job, node, hostname, slots, role, settings, …; no store
    /// argv template; `${local_rank}` as torchrun substitutes it.
    std::vector<std::string> command;
    std::string tracked_run = {};  ///< DDPRUN_RUN_ID: the same after restarts and requeues
    /// Set for each worker, too: that number under the names by which trackers look for it.
    std::vector<std::pair<std::string, std::string>> tracker_environment = {};
    std::string log_dir;                  ///< `<log-dir>/<job>_<8 hex>`; empty: no files
    std::string endpoint;                 ///< of the rendezvous, as the user gave it
    std::string store_host;               ///< bind the store here; empty: the link's local address
    bool has_preflight_command = false;   ///< is run before this node says that it is ready
    bool awaits_gpu_memory = false;       ///< workers may see GPUs whose driver tells of it
    bool is_store_at_rendezvous = false;  ///< it serves the workers' store, this node never
    bool is_store_of_rank_0 = false;      ///< its worker serves it, on a port kept free for it
    bool relays_store = false;            ///< workers reach another node's store through a relay
    Milliseconds rendezvous_lost_timeout{60000};
    Milliseconds lasting_rendezvous_lost_timeout{600000};  ///< of a daemon that is kept running
    Milliseconds connect_timeout{600000};                  ///< for the very first connection
    int omp_num_threads = 0;                               ///< 0: inherited, or left unset
    bool sets_nccl_async_error_handling = true;            ///< unset in our environment
    /// Told to the workers.
    std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
    std::string preload;      ///< LD_PRELOAD of the workers, whole; empty: as inherited
    std::string python_path;  ///< PYTHONPATH of the workers, whole; empty: as inherited
    std::optional<Debugging> debugging;
    /// By local rank; those beyond its end have none.
    std::vector<WorkerPlacement> placement;
    std::optional<InterfaceChoice> interface;   ///< none: workers choose by themselves
    std::optional<LeaveNotice> known_end = {};  ///< of this node: a time limit
    /// How long workers of an earlier start took to leave when asked; none: nobody knows.
    std::optional<Milliseconds> saving = {};
    Milliseconds hang_notice{600000};  ///< a hang that lasts so long is spoken of; 0: never
    std::optional<Milliseconds> kill_wait = {};  ///< SIGTERM to SIGKILL of who sends it, if known
};

// ---------------------------------------------------------------------------------------- inputs

/// Connected and authenticated; `local_address` is ours on that connection.
struct LinkUp {
    std::string local_address;
    rdzv::Endpoint rendezvous{};  ///< the other end of it
    std::string interface = {};   ///< that has our address; empty: nobody can tell
};

/// The connection ended; the link goes on trying by itself unless `is_final`.
struct LinkDown {
    std::string why;
    bool is_final = false;  ///< trying again cannot help (other secret, other protocol version)
};

struct FromRendezvous {
    rdzv::RendezvousMessage message;
};

/// Answers OpenStore: bound and listening.
struct StoreOpened {
    StoreAddress address;
};

/// Answers OpenStore: `why` says address, port and reason.
struct StoreFailed {
    std::string why;
};

/// A worker is dying abnormally; it is not reaped yet: its memory is being freed, or its core is
/// being written. WorkerExited follows. Comes only for workers that hold a lock in the shared page.
struct WorkerDying {
    Generation generation;
    LocalRank local_rank;
    rdzv::Evidence evidence;  ///< as of WorkerExited
};

/// A worker process ended (or could not be started: exec_errno). Given at once: the evidence says
/// how it ended, not what it left behind, for which CollectLastWords asks.
struct WorkerExited {
    Generation generation;
    LocalRank local_rank;
    rdzv::Evidence evidence;
    /// The signal of the key that was typed at its terminal and by which it ended: SIGINT or
    /// SIGQUIT. 0: none.
    int typed_signal = 0;
};

/// Answers CollectLastWords, within Limits::evidence_timeout: all are empty if the disk took
/// longer.
struct LastWords {
    Generation generation;
    LocalRank local_rank;
    std::string stderr_tail;
    std::string error_file;
    std::string stdout_tail = {};
};

/// Answers EmptyGeneration: proof that no process of that generation is left here.
struct Emptied {
    Generation generation;
};

/// Answers EmptyGeneration, or comes at any time when the keeper has died: something survived
/// SIGKILL for Limits::unkillable_after. KeeperLost does not come before that is gone.
struct NotEmptied {
    Generation generation;
    std::string what;
};

/// Answers LookAtWorkers. May never come: then there is nothing to be told from it.
struct Looked {
    Generation generation;
    SignsOfLife seen;
};

/// Answers LookAtGpus; not for a generation that has been emptied meanwhile.
struct GpusLooked {
    Generation generation;
    bool are_used = false;  ///< by our workers, as far as it can be told
};

/// Answers SaveStacks: they are saved, or cannot be, or not in time.
struct StacksSaved {
    Generation generation;
};

/// Answers AwaitGpuMemory: it is freed, is held by others, or is waited for no longer.
struct GpuMemoryAwaited {};

/// Answers RunPreflight.
struct PreflightDone {
    std::string why;  ///< this node is not fit; empty: it is
};

/// Answers RunPrepare: how the command has ended. What it left behind may still live.
struct PrepareEnded {
    std::string fault;  ///< "exited with code 3"; empty: it exited 0
    int exit_code = 0;  ///< of ddprun for that
};

/// The keeper died; its workers are dead with it and swept, another keeper is ready.
struct KeeperLost {};

/// A signal that is to be handled (SIGTERM, SIGINT, SIGHUP, SIGQUIT).
struct Signalled {
    int signal = 0;
};

/// A signal that means something to the workers alone (SIGUSR1, SIGUSR2).
struct WorkersSignalled {
    int signal = 0;
};

struct Tick {};

/// Inputs are, beside these, LeaveNotices: this node will be taken away.
using Input = std::variant<LinkUp, LinkDown, FromRendezvous, StoreOpened, StoreFailed, WorkerDying,
                           WorkerExited, LastWords, Emptied, NotEmptied, Looked, GpusLooked,
                           StacksSaved, GpuMemoryAwaited, PreflightDone, PrepareEnded, KeeperLost,
                           Signalled, WorkersSignalled, LeaveNotice, Tick>;

// --------------------------------------------------------------------------------------- effects

struct SendToRendezvous {
    rdzv::AgentMessage message;
};

/// The rendezvous does not answer on this connection: end it and look for one that does. Answered
/// by LinkDown.
struct DropLink {
    std::string why;
};

/// Nothing of a generation is left: wait until the driver has freed what it held on the GPUs, for
/// at most Limits::gpu_memory_timeout; answered by GpuMemoryAwaited.
struct AwaitGpuMemory {};

/// Run the site's own check of this machine; answered by PreflightDone, and never at once.
struct RunPreflight {};

/// Run the user's prepare command, as if it were the one worker of kPrepareGeneration; answered by
/// PrepareEnded. SignalWorkers and EmptyGeneration reach it by that number.
struct RunPrepare {
    std::vector<std::pair<std::string, std::string>> environment;  ///< as WorkerSpec's
};

/// Have a store socket bound and listening on `host`, or a port kept for rank 0's own; answered by
/// StoreOpened or StoreFailed.
struct OpenStore {
    std::string host;
};

/// Serve a fresh store on that socket, or go on to keep its port. It is used up by this.
struct ServeStore {
    Generation generation;
    std::vector<std::string> admitted;
    int clients = 0;  ///< that will come: the world size
};

/// Stop serving, or relaying: clients are disconnected, keys forgotten.
struct CloseStore {};

struct WorkerSpec {
    LocalRank local_rank;
    std::vector<std::string> command;
    /// Set over the environment that ddprun itself was started with. DDPRUN_PAGE is empty: who
    /// makes the page adds its path.
    std::vector<std::pair<std::string, std::string>> environment;
    std::string log_dir;        ///< of this worker and generation; empty: no files
    std::vector<int> cpus;      ///< it is bound to these; empty: to none
    bool is_bystander = false;  ///< another worker is being debugged: it finds nothing on stdin
};

struct StartWorkers {
    Generation generation;
    Rank base_rank;
    int world_size = 0;
    Instant publish_until = Instant::min();  ///< as AllowPublishing would say
    std::vector<WorkerSpec> workers;
    /// Of another node: serve a relay to it, and tell the workers that this is their store.
    std::optional<StoreAddress> relayed_store = {};
};

/// Tell the workers that look at the shared page to save and leave before `deadline`: then they are
/// killed, or those of another node that save with them. Comes again when it has come nearer.
struct AskWorkersToLeave {
    Generation generation;
    int signal = 0;  ///< that is sent to those who do not look
    Instant deadline{};
};

/// Send `signal` to the process group of every worker that still runs.
struct SignalWorkers {
    Generation generation;
    int signal = 0;
    bool spares_asked = false;  ///< not to those that the last AskWorkersToLeave has reached
};

/// Send `signal` to the program of every worker that still runs, if that has a handler for it.
struct ForwardSignal {
    Generation generation;
    int signal = 0;
};

/// Tell through the shared page until when the workers may publish: this node's place in the
/// generation is sure until then. Instant::max(): for ever; Instant::min(): not at all. Comes when
/// that changes; nobody wakes when it has passed.
struct AllowPublishing {
    Generation generation;
    Instant until = Instant::min();
};

/// Find out whether the workers show signs of life; answered by Looked.
struct LookAtWorkers {
    Generation generation;
};

/// Find out whether the workers have used their GPUs within `quiet_for`, in at most
/// Limits::gpu_look_timeout; answered by GpusLooked.
struct LookAtGpus {
    Generation generation;
    Milliseconds quiet_for{0};
};

/// Save the stacks of all threads of these workers in `folder`, within Limits::stacks_timeout;
/// answered by StacksSaved. Orders for the workers that follow do not wait for it.
struct SaveStacks {
    Generation generation;
    std::string folder;  ///< empty: nothing is kept on this node
    Rank base_rank;
    std::vector<LocalRank> workers;
};

/// Carry on what this worker, which failed, has written so far, and read its last words and its
/// error file; answered by LastWords.
struct CollectLastWords {
    Generation generation;
    LocalRank local_rank;
};

/// SIGKILL whatever is left of the generation, descendants too, and prove that nothing is.
struct EmptyGeneration {
    Generation generation;
};

/// One line for the user, without the "ddprun: " prefix.
struct Say {
    std::string text;
};

/// Print the report of a closed run (report.hpp).
struct ShowVerdict {
    rdzv::Verdict verdict;
};

/// The agent is done: no worker is left, Goodbye was sent where there was a link.
struct Exit {
    int code = 0;
};

struct Trace {
    std::string text;
};

using Effect =
    std::variant<SendToRendezvous, DropLink, AwaitGpuMemory, RunPreflight, RunPrepare, OpenStore,
                 ServeStore, CloseStore, StartWorkers, AskWorkersToLeave, SignalWorkers,
                 ForwardSignal, AllowPublishing, LookAtWorkers, LookAtGpus, SaveStacks,
                 CollectLastWords, EmptyGeneration, Say, ShowVerdict, Exit, Trace>;
using Effects = std::vector<Effect>;

/// What keeps a node from going on: the nearest thing, if there are several.
enum class Wait {
    Nothing,
    KilledWorkers,   ///< to be gone
    Stacks,          ///< of a generation that hangs, to be saved
    StoppedWorkers,  ///< to end
    UnfitHeard,      ///< the rendezvous to have heard that this node is not fit
    Link,            ///< a connection to the rendezvous
    GpuMemory,       ///< to be freed
    Preflight,
    Prepare,       ///< the command that runs here
    PrepareToEnd,  ///< the same, which was signalled or killed
    LastWords,     ///< of a failed worker
    StoreSocket,
    JoinAnswer,
    RendezvousSays,  ///< what the rendezvous says it waits for
    OtherNodesDrain,
    Generation,     ///< the rendezvous has given no reason
    OtherNodesEnd,  ///< workers here have ended
};

/// Why an agent exits.
enum class ExitReason {
    Signal,    ///< or a notice
    Released,  ///< the job goes on without this node
    Refused,
    Verdict,
    RendezvousLost,  ///< or never found
    Unprepared,      ///< the prepare command failed here
    Unusable,        ///< what this node was given cannot work, or it is not fit
    Unkillable,      ///< a worker survived SIGKILL
    Bug,             ///< of ddprun itself
};

/// What has made an agent leave its job, with time to save.
enum class LeaveCause {
    None,    ///< it does not, or goes for another reason
    Signal,  ///< but no Ctrl-C
    TimeLimit,
    Notice,  ///< that concerns this node
};

/// Decides everything on one node: when workers start, are signalled, killed and judged, what is
/// reported, and when the agent may go. Pure, like rdzv::Coordinator: agent/README.md holds its
/// state × input table. Owned and called by one thread.
class Supervisor {
public:
    explicit Supervisor(SupervisorOptions options);
    ~Supervisor();
    Supervisor(const Supervisor&) = delete;
    Supervisor& operator=(const Supervisor&) = delete;

    /// Takes one input at `now`, which never goes backwards; appends what must be done, in order.
    void step(Instant now, const Input& input, Effects& out);

    [[nodiscard]] std::optional<Instant> next_deadline() const;

    [[nodiscard]] Wait waits_for() const;

    /// The same for people; empty when nothing is awaited.
    [[nodiscard]] std::string explain() const;

    /// Why the agent will exit, once that is decided. Workers that may live go first.
    [[nodiscard]] std::optional<ExitReason> exit_reason() const;

    /// Why it was left, once exit_reason() is known.
    [[nodiscard]] LeaveCause leave_cause() const;

    /// How long workers took to leave when they were last asked, here or as the options say.
    [[nodiscard]] std::optional<Milliseconds> saving() const;

    /// The generation whose workers may live here; none when proven empty. For checkers.
    [[nodiscard]] std::optional<Generation> held_generation() const;

private:
    class State;
    std::unique_ptr<State> state_;
};

}  // namespace ddprun::agent
