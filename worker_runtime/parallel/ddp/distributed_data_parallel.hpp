#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "worker_runtime/nn/output_tensors.hpp"
#include "worker_runtime/parallel/ddp/gradient_reducer.hpp"

namespace ddprun {

/// Trains `Network` (a torch::nn::Module with a forward) on all ranks of a group at once: each rank
/// works on its own share of the batch, and after backward every rank has the mean of all ranks'
/// gradients. It starts with rank 0's parameters and buffers everywhere. The gradients lie in the
/// buckets that travel (Python's gradient_as_bucket_view=True): whoever keeps one clones it, as the
/// next backward writes over it.
///
///     ddprun::DistributedDataParallel model(network, group);
///     loss_of(model.forward(images), labels).backward();
///     optimizer.step();
///
/// One thread; every rank does the same number of passes, but within join(). Throws what LibTorch
/// throws, also when a peer dies.
template <typename Network>
class DistributedDataParallel {
public:
    DistributedDataParallel(std::shared_ptr<Network> network, ProcessGroup group,
                            const DistributedDataParallelOptions& options = {})
        : network_(std::move(network)),
          reducer_(
              std::make_unique<worker::GradientReducer>(*network_, std::move(group), options)) {}

    /// The same for LibTorch's module holders (TORCH_MODULE).
    DistributedDataParallel(const torch::nn::ModuleHolder<Network>& network, ProcessGroup group,
                            const DistributedDataParallelOptions& options = {})
        : DistributedDataParallel(network.ptr(), std::move(group), options) {}

    template <typename... Inputs>
    auto forward(Inputs&&... inputs) {
        reducer_->before_forward();
        auto outputs = network_->forward(std::forward<Inputs>(inputs)...);
        std::vector<torch::Tensor> tensors;
        worker::collect_tensors(outputs, tensors);
        reducer_->before_backward(tensors);
        return outputs;
    }

    /// While it lives, forward and backward only add up this rank's gradients; the next pass
    /// without it averages the sums of all ranks. For batches that are larger than the memory.
    class [[nodiscard]] NoSync {
    public:
        explicit NoSync(worker::GradientReducer& reducer)
            : reducer_(reducer), before_(std::exchange(reducer.is_synchronising, false)) {}
        ~NoSync() { reducer_.is_synchronising = before_; }
        NoSync(const NoSync&) = delete;
        NoSync& operator=(const NoSync&) = delete;

    private:
        worker::GradientReducer& reducer_;
        bool before_;
    };

    NoSync no_sync() { return NoSync(*reducer_); }

    /// Runs `train`, in which the ranks may do different numbers of passes: a rank whose `train`
    /// has returned takes part, with gradients of zero, in the others' passes until theirs have,
    /// too. Then every rank has the network of one that was among the last; its optimizer's state
    /// is its own. Before each pass the ranks send each other a few words over Gloo. Within,
    /// nothing but this wrapper, stop_requested() after each pass, and optimizers may use the
    /// group: no SyncBatchNorm, no other collective, or only with throw_on_early_termination. An
    /// exception of `train` is thrown on, and the others wait for this rank until it ends.
    template <typename Train>
    void join(const Train& train, const JoinOptions& options = {}) {
        reducer_->begin_join(options);
        const auto joined = c10::make_scope_exit([this] { reducer_->end_join(); });
        train();
        reducer_->shadow_others();
    }

    [[nodiscard]] Network& network() { return *network_; }

private:
    std::shared_ptr<Network> network_;
    std::unique_ptr<worker::GradientReducer> reducer_;
};

}  // namespace ddprun
