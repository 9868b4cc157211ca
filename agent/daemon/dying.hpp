#pragma once

#include <optional>

#include "agent/process/keeper_protocol.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::agent {

/// Returns how the worker `pid`, of which LifeWatch has seen a sign, is dying abnormally. `told` is
/// the signal that the worker reported as its cause of death, or all zero. Returns nothing if `pid`
/// runs on (another program, or only its first thread has ended), ends with 0, or cannot be read.
[[nodiscard]] std::optional<WorkerEnd> abnormal_end_of(int pid, FatalSignal told);

}  // namespace ddprun::agent
