#pragma once

#include <optional>
#include <string>

#include "base/memory_room.hpp"

namespace ddprun {

/// Reads this process's memory limits; returns nothing if the kernel does not report them. Limits
/// of cgroup v1 are not known. `root` is put before every path.
[[nodiscard]] std::optional<MemoryRoom> read_memory_room(const std::string& root = {});

/// The path of this process's cgroup v2, as /proc/self/cgroup has it. Empty: it is in none.
[[nodiscard]] std::string own_cgroup_path(const std::string& root = {});

/// The folder of its cgroup v2; it need not exist. Empty: it is in none.
[[nodiscard]] std::string own_memory_cgroup(const std::string& root = {});

}  // namespace ddprun
