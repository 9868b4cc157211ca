#pragma once

#include <cstdint>

namespace ddprun {

/// What somebody and his children may have of memory.
struct MemoryRoom {
    std::uint64_t total = 0;  ///< bytes of the machine, or of the tightest cgroup limit
    std::uint64_t free = 0;   ///< of them, with what the kernel takes back when somebody needs it
};

}  // namespace ddprun
