#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <torch/types.h>

#include "worker_runtime/comm/process_group.hpp"

namespace torch::nn {
class Module;
}

namespace ddprun {

/// The type that gradients travel in; they are added up in it, and come back in their own type.
enum class GradientCompression {
    None,
    Float16,   ///< half the bytes of float32; numbers beyond 65,504 become infinite
    BFloat16,  ///< half the bytes, the range of float32, 8 bits of precision
};

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
    /// For networks whose gradients take longer to send than to compute.
    GradientCompression compression = GradientCompression::None;
};

struct JoinOptions {
    /// Gradients are divided by the whole world's size also when ranks have run out, so that every
    /// sample weighs the same; else by the number of ranks that still train.
    bool divide_by_initial_world_size = true;
    /// As soon as one rank has run out, forward() throws on the others and join() on that one.
    bool throw_on_early_termination = false;
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
    /// `outputs`: what backward will start from; only read with find_unused_parameters.
    void before_backward(const std::vector<torch::Tensor>& outputs);

    /// From now on the ranks send each other in before_forward() what their pass will need.
    void begin_join(const JoinOptions& options);
    /// Takes part in what the others' passes need until they have run out of inputs, too; then
    /// everyone has the network of a rank that was among the last.
    void shadow_others();
    void end_join();

    /// While false, backward adds to this rank's own gradients and sends nothing.
    bool is_synchronising = true;

private:
    struct Engine;
    /// The ranks that still train, and what they are about to do.
    struct Round {
        int active = 0;            ///< how many
        int last_active = 0;       ///< the highest of them
        bool is_giving = false;    ///< they take its buffers
        bool is_reducing = false;  ///< they average gradients
    };
    Round meet(bool is_active, bool is_giving, bool is_reducing);

    std::unique_ptr<Engine> engine_;
};

}  // namespace worker

}  // namespace ddprun
