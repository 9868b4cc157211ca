#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <torch/types.h>

#include "worker_runtime/torch/process_group.hpp"

namespace torch::nn {
class Module;
}

namespace ddprun {

struct DistributedDataParallelOptions {
    /// Gradients travel in buckets of about this size, the one that is ready first in a smaller
    /// one, so that it starts early.
    std::size_t bucket_bytes = std::size_t{25} << 20;
    std::size_t first_bucket_bytes = std::size_t{1} << 20;
    /// For networks in which a step may leave parameters without a gradient.
    bool find_unused_parameters = false;
    /// Before each forward pass of a network in training that has buffers (batch norm), take rank
    /// 0's.
    bool broadcast_buffers = true;
};

namespace worker {

/// c10d::Reducer around the parameters of one network: averages the gradients of all ranks during
/// backward, bucket by bucket. Which parameter lies where in which bucket depends on the network
/// alone, and never changes: sums over three and more ranks depend on the place in the buffer, and
/// a resumed run must go on bit for bit. One thread. Throws what LibTorch throws.
class GradientReducer {
public:
    /// Compares the parameters' shapes with the other ranks', then gives everyone rank 0's
    /// parameters and buffers. Every rank must call it.
    GradientReducer(torch::nn::Module& network, ProcessGroup group,
                    const DistributedDataParallelOptions& options);
    ~GradientReducer();
    GradientReducer(const GradientReducer&) = delete;
    GradientReducer& operator=(const GradientReducer&) = delete;

    void before_forward();
    /// `outputs`: what backward will start from; only looked at with find_unused_parameters.
    void before_backward(const std::vector<torch::Tensor>& outputs);

    /// While false, backward adds to this rank's own gradients and tells nobody.
    bool is_synchronising = true;

private:
    struct Engine;
    std::unique_ptr<Engine> engine_;
};

}  // namespace worker

}  // namespace ddprun
