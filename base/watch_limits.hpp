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

    // How far ranks are.
    Milliseconds watched_for{60000};       ///< nodes tell it so long after somebody has looked
    Milliseconds progress_interval{1000};  ///< of one node, between two times
    /// the interval of each node is as many times this as nodes tell: 250 messages a second in all
    Milliseconds progress_spacing{4};
    std::size_t watch_orders_max = 64;     ///< nodes told so in one turn of the daemon's loop
    std::size_t status_ranks_max = 65536;  ///< ranks listed in one answer to /status
    /// steps/s are over at least so much, where the rank has trained so long: some dozens of steps
    Milliseconds pace_window{10000};
    std::size_t pace_samples_max = 16;  ///< kept of each rank, within the window
};

}  // namespace ddprun
