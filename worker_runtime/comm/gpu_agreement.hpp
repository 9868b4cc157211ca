#pragma once

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/env/gpu_place.hpp"

namespace ddprun::worker {

/// Tells all ranks what this one has; are_gpus_shared() of all. The same answer on every rank: an
/// Error of it ends the group in order, so that nobody takes it for a death.
[[nodiscard]] Result<bool> agree_on_gpus(ProcessGroup group, const RankGpu& mine,
                                         bool is_sharing_allowed);

}  // namespace ddprun::worker
