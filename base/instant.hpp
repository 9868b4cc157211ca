#pragma once

#include <chrono>

namespace ddprun {

/// A moment on one process's monotonic clock. Pure cores are given it and never read a clock;
/// the simulator makes instants up.
using Instant = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
using Milliseconds = std::chrono::milliseconds;

}  // namespace ddprun
