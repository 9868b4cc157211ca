#pragma once

#include <string>

#include "worker_runtime/contract/containment_level.hpp"

namespace ddprun::agent {

/// Why this machine cannot contain workers at `level`, for people; empty: it can. Tries it: a
/// cgroup or a namespace is made and gone again.
[[nodiscard]] std::string containment_refusal(ContainmentLevel level);

}  // namespace ddprun::agent
