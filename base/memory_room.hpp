#pragma once

#include <cstdint>

namespace ddprun {

/// Memory that a process and its children may use.
struct MemoryRoom {
    std::uint64_t total = 0;  ///< bytes of the machine, or of the tightest cgroup limit
    std::uint64_t free = 0;   ///< of them, with what the kernel reclaims on demand
};

}  // namespace ddprun
