#pragma once

#include <concepts>
#include <functional>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace ddprun {

struct ActivationCheckpointOptions {
    /// The second computation draws the same random numbers as the first, say for dropout. False
    /// saves two copies of the generators' states.
    bool keep_random_state = true;
};

/// A part of a network as a function of its inputs. It may be called twice.
using Segment = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;

/// segment(inputs), without keeping what it computes in between: backward computes it once more.
/// Costs the time of a forward and saves the memory of all activations but `inputs`. As Python's
/// torch.utils.checkpoint: the second time autocast and random generators (of the CPU and of the
/// inputs' GPUs) are as they were the first time, and afterwards as they were before. `parameters`
/// are all tensors beside `inputs` that the segment uses and that take a gradient. Their gradients
/// and hooks come once, so it works under DistributedDataParallel. Buffers that a forward changes,
/// say batch norm's averages, are changed twice. No second derivatives: create_graph throws.
[[nodiscard]] std::vector<torch::Tensor> checkpoint_activations(
    Segment segment, const std::vector<torch::Tensor>& inputs,
    const std::vector<torch::Tensor>& parameters, ActivationCheckpointOptions options = {});

/// The same for module->forward(inputs...), one tensor out of tensors. `module`: LibTorch's holder
/// (Linear, Sequential, …) or a shared_ptr; it is kept until backward is done.
template <typename Module, std::same_as<torch::Tensor>... Inputs>
[[nodiscard]] torch::Tensor checkpoint_activations(const Module& module, const Inputs&... inputs) {
    const Segment segment = [module](const std::vector<torch::Tensor>& all) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            Module kept = module;
            return std::vector<torch::Tensor>{kept->forward(all[I]...)};
        }
        (std::index_sequence_for<Inputs...>());
    };
    return checkpoint_activations(segment, {inputs...}, module->parameters()).front();
}

}  // namespace ddprun
