#pragma once

#include <optional>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"

/// Questions that the ranks of a group answer together. Every rank calls the same function, and all
/// get the same answer.
namespace ddprun::worker {

/// The lowest rank whose `is_right` is false; none if all are right.
[[nodiscard]] Result<std::optional<int>> first_rank_against(ProcessGroup& group, bool is_right);

/// Success if `own` is one on every rank; else the error of the lowest rank that has one, with its
/// number.
[[nodiscard]] Result<void> agree_on(ProcessGroup& group, const Result<void>& own);

}  // namespace ddprun::worker
