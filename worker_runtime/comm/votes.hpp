#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/comm/process_group.hpp"

/// Questions that the ranks of a group answer together. Every rank calls the same function, and all
/// get the same answer.
namespace ddprun::worker {

/// The number of the first of `rows`, one number each, that is 0. Asks no other rank.
[[nodiscard]] std::optional<int> first_zero_of(const torch::Tensor& rows);

/// The lowest rank whose `is_right` is false; none if all are right.
[[nodiscard]] Result<std::optional<int>> first_rank_against(ProcessGroup& group, bool is_right);

/// Success if `own` is one on every rank; else an error on every rank with the number and the text
/// of the lowest rank that failed. Its code is a rank's own, and Refused where `own` is a success.
[[nodiscard]] Result<void> agree_on(ProcessGroup& group, const Result<void>& own);

/// As agree_on(), in the same exchange: on success the numbers of every rank, [world, n]. Every
/// rank has as many.
[[nodiscard]] Result<torch::Tensor> agree_with_numbers(ProcessGroup& group, const Result<void>& own,
                                                       std::vector<std::int64_t> numbers);

/// Rank 0's result, on every rank: its text, or its error. The others' `own` is not read.
[[nodiscard]] Result<std::string> from_rank_0(ProcessGroup& group, const Result<std::string>& own);

/// The text of every rank, by rank. If ranks have errors, the error of the lowest one, which names
/// that rank.
[[nodiscard]] Result<std::vector<std::string>> gather_results(ProcessGroup& group,
                                                              const Result<std::string>& own);

/// The result of act(), or its exception as an Error: the other ranks wait for this rank's vote.
template <typename T, typename Act>
[[nodiscard]] Result<T> caught(const Act& act) {
    try {
        return act();
    } catch (const std::exception& failure) {
        return Error{ErrorCode::System, first_line(failure)};
    }
}

}  // namespace ddprun::worker
