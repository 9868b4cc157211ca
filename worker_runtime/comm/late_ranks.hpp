#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/backends.hpp"

namespace ddprun::worker {

/// Names the ranks that keep the others waiting: "rank 1 has not begun it, or does not answer".
/// Each rank whose collective `number` has reached its time-out calls this, and reports it through
/// `store`. A rank that has not reported after RuntimeLimits::late_answer is named. If the store
/// does not answer, the text says so instead. From any thread: it connects to the store anew.
[[nodiscard]] std::string name_late_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                                          const BackendPlace& place, std::uint64_t number,
                                          const RuntimeLimits& limits = {});

/// The same of transfers to and from these ranks: each has its own number for them, so the store
/// is not asked. "rank 1 has not begun it, or does not answer"; several: "one of ranks 1, 2 has …".
[[nodiscard]] std::string late_peers_text(const std::vector<int>& peers);

}  // namespace ddprun::worker
