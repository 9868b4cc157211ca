#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"

/// Ranks send each other the text or the error that a part of a save has ended with. Every rank
/// calls the same function.
namespace ddprun::worker {

/// Rank 0's outcome, on every rank.
[[nodiscard]] Result<std::string> from_rank_0(ProcessGroup& group, const Result<std::string>& own);

/// Every rank's outcome, by rank; the error of the first rank that has one, with its number.
[[nodiscard]] Result<std::vector<std::string>> gather_outcomes(ProcessGroup& group,
                                                               const Result<std::string>& own);

}  // namespace ddprun::worker
