#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/contract/leave_notice.hpp"
#include "agent/contract/worker_options.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

/// A user debugs a rank at a terminal, perhaps at another node's: silence of the workers here is
/// no hang, and none of the others here reads what is typed, or stops at a breakpoint() of
/// Python's.
struct Debugging {
    Rank rank;
    bool is_asked = false;      ///< by --debug-rank: what that does is said
    bool has_terminal = false;  ///< ddprun here, for the rank if it is here
};

/// Options that the launcher gives one agent once.
struct SupervisorOptions {
    Limits limits;
    rdzv::Join identity;  ///< job, node, hostname, slots, role, settings, …; no store
    /// argv template; `${local_rank}` as torchrun substitutes it.
    std::vector<std::string> command;
    std::string tracked_run = {};  ///< DDPRUN_RUN_ID: the same after restarts and requeues
    /// Set for each worker, too: that number under the names by which trackers look for it.
    Environment tracker_environment = {};
    std::string log_dir;     ///< `<log-dir>/<job>_<8 hex>`; empty: no files
    std::string endpoint;    ///< of the rendezvous, as the user gave it
    std::string rendezvous;  ///< all its endpoints, as ddpctl takes them; empty: this process is it
    std::string store_host;  ///< bind the store here; empty: the link's local address
    bool has_preflight_command = false;   ///< is run before this node says that it is ready
    bool awaits_gpu_memory = false;       ///< workers may see GPUs whose driver reports it
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
    /// How long workers of an earlier start took to leave when asked; none: not known.
    std::optional<Milliseconds> saving = {};
    Milliseconds hang_notice{600000};  ///< a hang that lasts so long is spoken of; 0: never
    std::optional<Milliseconds> kill_wait = {};  ///< SIGTERM to SIGKILL of who sends it, if known
};

}  // namespace ddprun::agent
