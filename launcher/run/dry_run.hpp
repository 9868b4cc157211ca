#pragma once

#include <string>

#include "agent/process/saved_process_state.hpp"
#include "launcher/plan/launch_plan.hpp"

namespace ddprun::launcher {

/// The text that --dry-run prints: where nodes meet, and for each worker of this node its command,
/// its CPUs and what is set over its environment, as the agent would set it. A value that is known
/// only when nodes have met is in <>. Ends with a newline.
[[nodiscard]] std::string dry_run_text(const LaunchPlan& plan,
                                       const agent::SavedProcessState& saved);

}  // namespace ddprun::launcher
