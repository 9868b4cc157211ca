#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/contract/drain_sources.hpp"
#include "agent/contract/notify_target.hpp"
#include "agent/contract/worker_options.hpp"
#include "base/error.hpp"
#include "base/instant.hpp"
#include "launcher/place/place.hpp"
#include "launcher/plan/rendezvous_port.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/messages.hpp"
#include "rendezvous/wire/tls_files.hpp"
#include "worker_runtime/contract/containment_level.hpp"

namespace ddprun::launcher {

enum class PrefixMode { Auto, Always, Never };

/// What the command line and environment ask for, checked and complete. Nothing has happened yet.
struct LaunchPlan {
    rdzv::JobSettings settings;
    int slots = 1;
    JobId job;                   ///< empty: choose a random one (only when max_nodes is 1)
    bool is_single_node = true;  ///< the rendezvous runs inside this process
    std::string endpoint_host;
    std::uint16_t endpoint_port = kRendezvousPort;
    /// Of more daemons, of which one leads at a time. A site runs them: none is started here then.
    std::vector<rdzv::Endpoint> other_endpoints;
    std::optional<Place> place;  ///< of the scheduler that has started us; none: nobody has
    bool takes_place = false;    ///< the number of nodes, rank and endpoint are the place's
    std::string topology_key;    ///< nodes with the same one are near each other
    std::optional<int> node_rank;
    std::string node_id;                  ///< empty: derived
    std::string local_addr;               ///< empty: derived
    std::uint16_t master_port = 0;        ///< of an agent's store; 0: the kernel chooses
    bool is_store_at_rendezvous = false;  ///< on its port, not on one of an agent's
    bool is_store_of_rank_0 = false;  ///< its worker serves it, as PyTorch does without torchrun
    bool relays_store = false;        ///< this node's workers share one connection to it
    std::string role = "default";
    /// argv of a worker; command[0] is a path that can be executed.
    std::vector<std::string> command;
    std::string program_file;         ///< what is run, on whatever; empty: nobody can tell
    std::string python;               ///< the interpreter that runs it; empty: none does
    bool takes_python_path = false;   ///< workers are Pythons that run what PYTHONPATH brings
    std::string program;              ///< as the user named it, for titles and reports
    std::string log_dir;              ///< root; empty: no files (--log-dir /dev/null)
    bool is_log_dir_default = false;  ///< its name can be guessed: it must be this user's own
    std::map<int, agent::OutputChoice>
        console;                          ///< by local rank; those not listed have the defaults
    std::vector<int> local_ranks_filter;  ///< empty: all show on the console
    agent::RanksFilter ranks_filter;      ///< beside that
    PrefixMode prefix = PrefixMode::Auto;
    bool folds = true;                 ///< equal lines of ranks are one on a terminal
    std::optional<int> debug_rank;     ///< this rank of the job has ddprun's terminal; none: nobody
    bool is_debug_asked = false;       ///< by --debug-rank
    bool is_json = false;              ///< console lines are objects of JSON
    int log_runs_kept = 0;             ///< of this user's runs in the log folder; 0: all
    std::uint64_t log_file_bytes = 0;  ///< a full log file is set aside; 0: there is no limit
    int log_files_kept = 0;            ///< of each log's full files; 0: all
    std::string secret_file;           ///< empty: the default place
    bool makes_secret = false;         ///< whoever comes first makes secret_file
    bool removes_secret = false;       ///< this node does so at the end
    bool is_insecure = false;
    std::string operator_secret_file;  ///< of the rendezvous that this node may start; empty
    rdzv::TlsFiles tls;
    /// None: a minute, or ten of a daemon that a site keeps running.
    std::optional<Milliseconds> rendezvous_lost_timeout;
    std::vector<std::string> warnings;  ///< to be said once before the start
    std::vector<std::string> notes;     ///< what was chosen in the user's place; to be said too
    int omp_num_threads = 0;            ///< of each worker; 0: as inherited
    std::vector<agent::WorkerPlacement> placement;  ///< by local rank; empty: nothing was asked for
    std::vector<std::string> stdout_filters;        ///< lines with one of these are kept apart, too
    std::vector<std::string> stderr_filters;
    std::vector<std::string> env_per_run;  ///< variables that workers find the run's number in
    bool resumes_wandb = false;            ///< these have WANDB_RUN_ID: a known run is gone on with
    std::optional<agent::InterfaceChoice> interface;  ///< none: workers choose by themselves
    std::vector<std::string> warm_modules;            ///< standbys import these
    /// They import what a worker does. Neither this nor modules: there are no standbys.
    bool learns_warm_modules = false;
    std::string warm_program;      ///< whose standbys wait by themselves; empty: it is Python's
    bool warm_needs_room = false;  ///< only where memory has room for them
    std::optional<std::uint64_t> warm_memory_max;  ///< bytes, of all standbys of this node
    Milliseconds hang_notice{600000};  ///< a hang that lasts so long is spoken of; 0: never
    std::string prepare_command;       ///< before the first workers, for the shell; empty: none
    bool is_prepared_once = false;     ///< by one node for the job
    std::string preflight_command;     ///< before each generation, for the shell; empty: none
    Milliseconds preflight_timeout{60000};
    bool is_dry_run = false;                      ///< to be shown, not to be carried out
    std::optional<ContainmentLevel> containment;  ///< none: the highest that can be had
    bool may_see_gpus = false;                    ///< workers, of NVIDIA's driver
    bool is_watched_by_preload = false;           ///< workers load ddprun-preload.so
    std::vector<int> signals_to_handle = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  ///< drain on these
    bool ignores_hup = false;
    std::vector<agent::DrainSource> drain_on;   ///< may say that this node has to go
    std::optional<agent::NotifyTarget> notify;  ///< is told what happens to the job
    int requeues = 0;       ///< so often a batch job that has left goes back into the queue
    std::string scontrol;   ///< its path, for that
    std::string slurm_job;  ///< the number of that job
    std::optional<Milliseconds> kill_wait;  ///< of who sends SIGTERM, to SIGKILL; none: unknown
};

}  // namespace ddprun::launcher
