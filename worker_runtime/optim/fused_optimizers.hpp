#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace ddprun {

/// torch::optim::AdamW with one kernel for all parameters, on CPUs and GPUs, where LibTorch's own
/// C++ class runs a dozen for each; Python's torch.optim.AdamW(fused=True). Options, groups, state
/// and what checkpoints hold are AdamW's: a training may change between them. Gradients must be
/// dense and of their parameter's type.
class FusedAdamW final : public torch::optim::AdamW {
public:
    using AdamW::AdamW;
    torch::Tensor step(LossClosure closure = nullptr) override;
};

/// torch::optim::SGD in the same way; Python's torch.optim.SGD(fused=True).
class FusedSGD final : public torch::optim::SGD {
public:
    using SGD::SGD;
    torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace ddprun
