#pragma once

#include <cstddef>
#include <ostream>
#include <utility>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "worker_runtime/comm/process_group.hpp"

namespace ddprun {

/// Batch normalisation over the batches of all ranks of a group: while training, mean and variance
/// are those of all ranks' samples together, however they are shared out, a rank without any
/// included. Forward does one all_gather, backward one all_reduce, so every rank calls both in the
/// same order. Evaluation uses the running statistics and no other rank.
///
/// Input: [n, channels, ...], a floating-point type; statistics are taken in float32 at least.
/// Parameters and buffers are named as those of torch::nn::BatchNorm2d. Their gradients are this
/// rank's share: DistributedDataParallel averages them as all others. Throws what LibTorch throws,
/// also when a peer dies, and where all ranks together have only one value per channel.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
public:
    SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroup group);

    /// In place of `replaced`: with its parameters themselves, so that an optimizer that has them
    /// stays right, and the memory of its buffers.
    template <std::size_t kDimensions, typename Derived>
    SyncBatchNormImpl(const torch::nn::BatchNormImplBase<kDimensions, Derived>& replaced,
                      ProcessGroup group)
        : SyncBatchNormImpl(replaced.options, std::move(group)) {
        take(replaced);
    }

    torch::Tensor forward(const torch::Tensor& input);
    void pretty_print(std::ostream& stream) const override;

protected:
    void _check_input_dim(const torch::Tensor& input) override;

private:
    template <typename Norm>
    void take(const Norm& replaced) {
        weight = replaced.weight;
        bias = replaced.bias;
        parameters_["weight"] = weight;
        parameters_["bias"] = bias;
        if (options.track_running_stats()) {
            running_mean.set_data(replaced.running_mean);
            running_var.set_data(replaced.running_var);
            num_batches_tracked.set_data(replaced.num_batches_tracked);
        }
        train(replaced.is_training());
    }

    /// How much of this batch goes into the running statistics.
    [[nodiscard]] double momentum_now() const;

    ProcessGroup group_;
};

TORCH_MODULE(SyncBatchNorm);

/// `network` with a SyncBatchNorm in place of every BatchNorm1d, 2d and 3d. All other modules and
/// all parameters are those of `network` itself: an optimizer that has them stays right. LibTorch's
/// modules hold theirs by type, so nothing can be put into them from outside: where another module
/// has a batch normalisation within, this throws and names it. Build that one with SyncBatchNorm,
/// or have it convert a Sequential of its own and register that by replace_module().
[[nodiscard]] torch::nn::Sequential convert_sync_batch_norm(const torch::nn::Sequential& network,
                                                            const ProcessGroup& group);

}  // namespace ddprun
