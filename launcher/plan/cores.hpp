#pragma once

#include <optional>

#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// How many cores' worth of work this process may do: the cores of the CPUs that it is allowed, and
/// no more than the quotas of its control groups (version 2). At least 1.
[[nodiscard]] int usable_cores(const Surroundings& surroundings);

/// The least quota of this process's control group (version 2) and those above it, in CPUs; none
/// where there is no bound.
[[nodiscard]] std::optional<double> cpu_quota(const Surroundings& surroundings);

}  // namespace ddprun::launcher
