#pragma once

#include <cstddef>

#include "base/instant.hpp"

namespace ddprun {

/// Bounds of who asks a run and of who is told of it. Not with the others: what decides about jobs
/// does not depend on them.
struct WatchLimits {
    // Who asks a run on this machine.
    Milliseconds asked_stacks_timeout{10000};  ///< for ddpctl stacks; no restart waits for it
    /// of each log, and of each rank's stacks, in what ddpctl report --bundle packs
    std::size_t bundle_part_bytes_max = std::size_t{256} << 10;
    std::size_t bundle_logs_bytes_max = std::size_t{64} << 20;  ///< of all logs in it together
};

}  // namespace ddprun
