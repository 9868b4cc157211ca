#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/contract/agent_options.hpp"
#include "agent/process/saved_process_state.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "launcher/plan/launch_plan.hpp"
#include "launcher/run/learned_imports.hpp"

namespace ddprun::launcher {

/// The facts of this node, and of this start of ddprun, that are not in the plan.
struct NodeFacts {
    JobId job;
    std::string tracked_run;  ///< tracked_run_of()
    std::string hostname;
    NodeId node;          ///< derived; the plan's wins, and a single node is called by its hostname
    std::string process;  ///< of this start
    std::vector<std::string> addresses;
    rdzv::Fingerprint fingerprint;
    std::string log_dir;  ///< log_dir_of() or empty
    LearnedImports learned;
    std::string preload_path;  ///< of ddprun-preload.so; empty unless the plan wants it
    std::string python_start;  ///< python_start_of() or empty
};

/// `<root>/<job>_<8 hex>`; empty where the plan wants no files.
[[nodiscard]] std::string log_dir_of(const LaunchPlan& plan, const JobId& job,
                                     std::uint64_t random);

/// DDPRUN_RUN_ID of the workers of `job`: 32 digits (hex) that follow from its name alone, so that
/// every node has the same, and so has the job when a scheduler starts it again. A job that has its
/// name from a scheduler has other digits than one of another cluster.
[[nodiscard]] std::string tracked_run_of(const LaunchPlan& plan, const JobId& job);

/// For NodeFacts: empty unless the plan wants it. The error says where it was looked for.
[[nodiscard]] Result<std::string> preload_path_of(const LaunchPlan& plan);

/// For NodeFacts: the folder that Pythons among the workers find before PYTHONPATH; empty unless
/// the plan has such. The error says where it was looked for.
[[nodiscard]] Result<std::string> python_start_of(const LaunchPlan& plan);

/// All that the agent of this node is told but for its keeper: the plan's, completed. Looks at this
/// process's environment and console.
[[nodiscard]] agent::AgentOptions options_of_agent(const LaunchPlan& plan, const NodeFacts& facts,
                                                   const agent::SavedProcessState& saved,
                                                   const Limits& limits);

}  // namespace ddprun::launcher
