#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/contract/drain_sources.hpp"
#include "agent/contract/memory_options.hpp"
#include "agent/contract/notify_target.hpp"
#include "agent/contract/output_options.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "agent/contract/warm_options.hpp"
#include "base/instant.hpp"
#include "base/watch_limits.hpp"

namespace ddprun::agent {

/// Options of a node's agent, but for its keeper.
struct AgentOptions {
    SupervisorOptions supervisor;
    OutputOptions output;
    MemoryOptions memory;
    WarmOptions warm;              ///< neither modules nor learns: all start cold
    std::uint16_t store_port = 0;  ///< fixed port of all stores; 0: the kernel chooses each
    std::vector<int> signals_to_handle = {SIGTERM, SIGINT, SIGHUP,
                                          SIGQUIT};  ///< each asks to drain
    std::vector<int> signals_to_forward;             ///< each is passed on to the workers
    bool is_on_terminal = false;                     ///< workers are told of its window's changes
    std::string preflight_command;                   ///< for the shell; empty: none
    Milliseconds preflight_timeout{60000};           ///< then it is killed
    std::string prepare_command;                     ///< for the shell; empty: none
    std::vector<DrainSource> drain_on;               ///< may say that this node will be taken away
    std::optional<NotifyTarget> notify;              ///< is told what happens to the job
    WatchLimits watch_limits;                        ///< of what is said and told of the workers
    std::string program;                             ///< as the user named it, for the report
    std::string error_file;  ///< to be written if the job fails, torchrun's format
};

}  // namespace ddprun::agent
