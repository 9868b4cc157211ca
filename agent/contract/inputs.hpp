#pragma once

#include <string>
#include <variant>

#include "agent/contract/leave_notice.hpp"
#include "agent/contract/signs_of_life.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Connected and authenticated; `local_address` is ours on that connection.
struct LinkUp {
    std::string local_address;
    rdzv::Endpoint rendezvous{};  ///< the other end of it
    std::string interface = {};   ///< that has our address; empty: it cannot be known
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

/// The checkpoints of a worker that ends, as it told.
struct SavedWork {
    std::string place;      ///< where they are; empty: not told, or several places were
    bool is_newer = false;  ///< one was saved since the worker was asked to save and leave
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
    SavedWork saved = {};
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

/// Answers RunPrepare: how the command has ended. Processes of the command may still live.
struct PrepareEnded {
    std::string fault;  ///< "exited with code 3"; empty: it exited 0
    int exit_code = 0;  ///< of ddprun for that
};

/// The keeper died; its workers are dead with it and swept, another keeper is ready.
struct KeeperLost {};

/// A signal that is to be handled (SIGTERM, SIGINT, SIGHUP, SIGQUIT).
struct Signalled {
    int signal = 0;
    bool workers_save = false;  ///< all workers here look whether they are to save and leave
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

}  // namespace ddprun::agent
