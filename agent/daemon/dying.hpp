#pragma once

#include <optional>

#include "agent/process/keeper_protocol.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::agent {

/// How the worker `pid` is about to end badly, as LifeWatch has found a sign of it: `told` is the
/// signal by which it said that it dies, or all zero. None if it does not die (it has become
/// another program, or only its first thread has ended), ends with 0, or cannot be looked at.
[[nodiscard]] std::optional<WorkerEnd> bad_end_of(int pid, FatalSignal told);

}  // namespace ddprun::agent
