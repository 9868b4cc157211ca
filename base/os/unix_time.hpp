#pragma once

#include "base/instant.hpp"

namespace ddprun {

/// The wall-clock time since 1970: for people and files, never for deadlines.
[[nodiscard]] inline Milliseconds unix_now() {
    return std::chrono::floor<Milliseconds>(std::chrono::system_clock::now().time_since_epoch());
}

/// The present, for deadlines and durations.
[[nodiscard]] inline Instant clock_now() {
    return std::chrono::steady_clock::now();
}

}  // namespace ddprun
