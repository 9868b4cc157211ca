#pragma once

#include <vector>

#include <torch/types.h>

#include "worker_runtime/comm/process_group.hpp"

namespace ddprun {

/// Scales gradients so that the norm over those of all ranks together is at most `max_norm`, for
/// networks of which every rank has parameters of its own (model parallelism). `norm_type`: 2, 1,
/// infinity. Every rank calls it, one without gradients too. The norm before, a float64 on the
/// group's device. On GPUs it waits for the norm: an error leaves the gradients as they were, and
/// without one no rank was lost before they had been computed. If all ranks have the same
/// gradients, as after a DistributedDataParallel's backward, they would count once for each rank:
/// the other overload is for them.
[[nodiscard]] Result<torch::Tensor> clip_grad_norm(ProcessGroup& group,
                                                   const std::vector<torch::Tensor>& parameters,
                                                   double max_norm, double norm_type = 2.0);

/// Python's clip_grad_norm_(foreach=True): scales gradients so that their norm is at most
/// `max_norm`. Asks no other rank. The norm before, a float64. A few kernels for all parameters of
/// a type, and no wait for a GPU, which torch::nn::utils::clip_grad_norm_ has for each.
/// InvalidArgument: a negative `max_norm`, or a `norm_type` that is not above 0.
[[nodiscard]] Result<torch::Tensor> clip_grad_norm(const std::vector<torch::Tensor>& parameters,
                                                   double max_norm, double norm_type = 2.0);

}  // namespace ddprun
