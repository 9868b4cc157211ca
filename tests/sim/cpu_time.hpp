#pragma once

#include <time.h>

namespace ddprun::sim {

/// The processor time that this process has used so far, in seconds.
inline double cpu_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

}  // namespace ddprun::sim
