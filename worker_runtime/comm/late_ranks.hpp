#pragma once

#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/backends.hpp"

namespace ddprun::worker {

/// Names the ranks that keep the others waiting: "rank 1 has not begun it, or does not answer".
/// Each rank whose collective `number` has reached its time-out calls this, and tells the others so
/// through `store`. Who has not told it after RuntimeLimits::late_answer is named. A store that
/// does not answer is said instead. From any thread: it connects to the store anew.
[[nodiscard]] std::string name_late_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                                          const BackendPlace& place, std::uint64_t number,
                                          const RuntimeLimits& limits = {});

}  // namespace ddprun::worker
