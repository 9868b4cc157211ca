#pragma once

#include <optional>

#include "base/instant.hpp"

namespace ddprun::agent {

/// Used by all that live or have lived in the cgroup v2 `folder`, an open descriptor, and below it.
/// None if the kernel does not tell.
[[nodiscard]] std::optional<Duration> cpu_time_of_cgroup(int folder);

/// Used by all descendants of `pid` that live, and by those that were reaped by it or by them.
[[nodiscard]] Duration cpu_time_below(int pid);

}  // namespace ddprun::agent
