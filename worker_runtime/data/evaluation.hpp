#pragma once

#include <cstdint>
#include <functional>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace ddprun {

/// Values per sample: gets int64 [n], the numbers of the samples, on the CPU; returns [n, k] of any
/// number type on any device. k is the same in every call on every rank.
using Judge = std::function<torch::Tensor(const torch::Tensor& indices)>;

/// Judges the samples [0, size) on all ranks together and returns the sums of the judge's values
/// over them: float64 [k] on the CPU, the same on every rank. Every sample counts once: where the
/// ranks' shares must be padded to equal length the padding is judged but not counted. Every rank
/// calls its judge equally often with equally many samples, so a judge may use collectives. Without
/// gradients. Fails, in its words, when the judge throws or returns another shape: the group is as
/// it was, and the other ranks wait for this one's sums until it ends.
[[nodiscard]] Result<torch::Tensor> evaluate(ProcessGroup& group, std::int64_t size,
                                             std::int64_t batch_size, const Judge& judge);

namespace worker {

struct EvaluationBatch {
    torch::Tensor indices;     ///< int64 [n]
    std::int64_t counted = 0;  ///< so many of them count, the first ones; the rest is padding
};

/// Batches per rank.
[[nodiscard]] std::int64_t evaluation_batches(std::int64_t size, int world_size,
                                              std::int64_t batch_size);

/// One rank's batch with this number, from 0; its size is the same on every rank.
[[nodiscard]] EvaluationBatch evaluation_batch(std::int64_t size, int rank, int world_size,
                                               std::int64_t batch_size, std::int64_t number);

}  // namespace worker

}  // namespace ddprun
