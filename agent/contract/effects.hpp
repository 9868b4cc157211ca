#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

/// Stands for the prepare command where a keeper wants the number of a generation. No workers have
/// it: rendezvous count from 1.
inline const Generation kPrepareGeneration{std::numeric_limits<std::uint64_t>::max()};

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
    Environment environment;  ///< as WorkerSpec's
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
    Environment environment;
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
    /// Another node's store: serve a relay to it, and give the workers the relay as their store.
    std::optional<StoreAddress> relayed_store = {};
};

/// Ask the workers that read the shared page to save and leave before `deadline`: then they are
/// killed, or those of another node that save with them. Comes again when it has come nearer.
struct AskWorkersToLeave {
    Generation generation;
    int signal = 0;  ///< is sent to workers that do not read the page
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

/// Say through the shared page until when the workers may publish: this node's place in the
/// generation is sure until then. Instant::max(): for ever; Instant::min(): not at all. Comes when
/// that changes; no wake-up comes when it has passed.
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
    std::string why;  ///< for people, where no verdict says it
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

}  // namespace ddprun::agent
