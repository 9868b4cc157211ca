#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

struct ProcessMemory {
    std::uint64_t resident_bytes = 0;
    std::uint64_t peak_bytes = 0;  ///< the most of that so far
};

/// The memory of `pid` alone; none: it is gone. `root` is put before every path, here and below.
[[nodiscard]] std::optional<ProcessMemory> memory_of_process(int pid, const std::string& root = {});

/// Returns the memory that this machine, or the tightest limit of our cgroup, has left. Returns
/// nothing if the kernel does not report it.
[[nodiscard]] std::optional<rdzv::HostMemory> host_memory(const std::string& root = {});

}  // namespace ddprun::agent
