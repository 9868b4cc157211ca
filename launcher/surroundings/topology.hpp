#pragma once

#include <vector>

namespace ddprun::launcher {

/// One CPU as the kernel numbers it (a hardware thread), and what it shares with others. The other
/// numbers only tell groups apart; those of a NUMA node and a package are the kernel's.
struct Cpu {
    int index = 0;
    bool is_allowed = true;  ///< this process may run there
    int core = 0;            ///< lowest CPU of its core
    int cache = 0;           ///< lowest CPU that shares its largest cache
    int node = 0;            ///< NUMA node
    int package = 0;

    bool operator==(const Cpu&) const = default;
};

/// The CPUs of one machine, by index.
struct Topology {
    std::vector<Cpu> cpus;
};

}  // namespace ddprun::launcher
