#pragma once

#include <optional>

#include "agent/process/keeper_protocol.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::agent {

/// How the worker `pid`, of which LifeWatch has seen a sign, is dying abnormally: `told` is the
/// signal by which it said that it dies, or all zero. None if it does not die (it has become
/// another program, or only its first thread has ended), ends with 0, or cannot be looked at.
[[nodiscard]] std::optional<WorkerEnd> abnormal_end_of(int pid, FatalSignal told);

}  // namespace ddprun::agent
