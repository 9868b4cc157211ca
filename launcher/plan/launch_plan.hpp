#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/contract/agent_options.hpp"
#include "launcher/place/place.hpp"
#include "launcher/plan/rendezvous_port.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/messages.hpp"
#include "rendezvous/wire/tls_files.hpp"
#include "worker_runtime/contract/containment_level.hpp"

namespace ddprun::launcher {

enum class PrefixMode { Auto, Always, Never };

/// The start that command line and environment ask for, checked and complete; no effect yet.
struct LaunchPlan {
    /// The agent's options, as far as they follow from what was asked: options_of_agent() adds what
    /// is known of this start. An empty job means a random one (of a single node only), an empty
    /// node and store_host are derived.
    agent::AgentOptions agent;
    std::optional<ContainmentLevel> containment;  ///< none: the highest that can be had

    bool is_single_node = true;  ///< the rendezvous runs inside this process
    std::string endpoint_host;
    std::uint16_t endpoint_port = kRendezvousPort;
    /// Endpoints of more daemons, one of which leads. A site runs them: none is started here then.
    std::vector<rdzv::Endpoint> other_endpoints;
    std::optional<Place> place;     ///< of the scheduler that started us; none: no scheduler did
    bool takes_place = false;       ///< the number of nodes, rank and endpoint are the place's
    std::uint16_t master_port = 0;  ///< of an agent's store; 0: the kernel chooses
    std::string secret_file;        ///< empty: the default place
    bool makes_secret = false;      ///< the first node to come makes secret_file
    bool removes_secret = false;    ///< this node does so at the end
    bool is_insecure = false;
    std::string operator_secret_file;  ///< of the rendezvous that this node may start; empty
    rdzv::TlsFiles tls;

    std::string program_file;              ///< what is run, on whatever; empty: not known
    std::string python;                    ///< the interpreter that runs it; empty: none does
    std::string python_origin;             ///< why this one; empty: the user typed it
    bool takes_python_path = false;        ///< workers are Pythons that run what PYTHONPATH brings
    bool is_watched_by_preload = false;    ///< workers load ddprun-preload.so
    std::vector<std::string> env_per_run;  ///< variables that workers find the run's number in
    bool resumes_wandb = false;            ///< these have WANDB_RUN_ID: a known run is gone on with

    std::string log_dir;                  ///< root; empty: no files (--log-dir /dev/null)
    bool is_log_dir_default = false;      ///< its name can be guessed: it must be this user's own
    int log_runs_kept = 0;                ///< of this user's runs in the log folder; 0: all
    std::vector<int> local_ranks_filter;  ///< empty: all show on the console
    PrefixMode prefix = PrefixMode::Auto;

    bool ignores_hup = false;
    int requeues = 0;       ///< so often a batch job that has left goes back into the queue
    std::string scontrol;   ///< its path, for that
    std::string slurm_job;  ///< the number of that job

    bool is_dry_run = false;            ///< to be shown, not to be carried out
    std::vector<std::string> warnings;  ///< to be said once before the start
    std::vector<std::string> notes;     ///< what was chosen in the user's place; to be said too

    /// The identity of this node, and the job with it.
    [[nodiscard]] rdzv::Join& identity() { return agent.supervisor.identity; }
    [[nodiscard]] const rdzv::Join& identity() const { return agent.supervisor.identity; }
};

}  // namespace ddprun::launcher
