#pragma once

#include "agent/process/saved_process_state.hpp"
#include "launcher/plan/launch_plan.hpp"

namespace ddprun::launcher {

/// Carries `plan` out: finds or starts the rendezvous, is this node's agent until the verdict, and
/// returns what ddprun exits with. `saved` is what this process was started with.
[[nodiscard]] int run(const LaunchPlan& plan, const agent::SavedProcessState& saved);

}  // namespace ddprun::launcher
