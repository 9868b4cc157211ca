#include "worker_runtime/optim/fused_optimizers.hpp"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/utils.h>

#include "worker_runtime/nn/without_repeats.hpp"

namespace ddprun {

namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

/// The input of one kernel: parameters of one type on one device that have made equally many steps,
/// with as many tensors in each list.
struct KernelBatch {
    torch::Device device;
    torch::ScalarType dtype;
    std::int64_t steps;
    std::vector<torch::Tensor> parameters;
    std::vector<torch::Tensor> gradients;
    std::vector<torch::Tensor> first_moments;  ///< or momentum
    std::vector<torch::Tensor> second_moments;
    std::vector<torch::Tensor> greatest_second_moments;
};

/// The batch for `parameter`, which is added to it with its gradient.
KernelBatch& batch_for(std::vector<KernelBatch>& batches, const torch::Tensor& parameter,
                       std::int64_t steps) {
    torch::Tensor gradient = parameter.grad();
    TORCH_CHECK(gradient.layout() == torch::kStrided,
                "a fused optimizer takes dense gradients only; use torch::optim's for sparse ones");
    // The kernels walk the memory of all lists alike.
    if (gradient.strides() != parameter.strides()) {
        gradient = torch::empty_like(parameter).copy_(gradient);
    }
    auto batch = batches.begin();
    while (batch != batches.end() &&
           std::tie(batch->device, batch->dtype, batch->steps) !=
               std::make_tuple(parameter.device(), parameter.scalar_type(), steps)) {
        ++batch;
    }
    if (batch == batches.end()) {
        batch = batches.insert(
            batch,
            KernelBatch{parameter.device(), parameter.scalar_type(), steps, {}, {}, {}, {}, {}});
    }
    batch->parameters.push_back(parameter);
    batch->gradients.push_back(std::move(gradient));
    return *batch;
}

torch::Tensor evaluate_closure(const Optimizer::LossClosure& closure) {
    if (!closure) {
        return {};
    }
    const at::AutoGradMode with_grad(true);
    return closure();
}

/// The state of `parameter`, made if this is its first step.
template <typename State, typename States>
State& state_of(States& states, const torch::Tensor& parameter) {
    auto& state = states[parameter.unsafeGetTensorImpl()];
    if (!state) {
        state = std::make_unique<State>();
    }
    return static_cast<State&>(*state);
}

}  // namespace

torch::Tensor FusedAdamW::step(LossClosure closure) {
    const torch::NoGradGuard no_grad;
    torch::Tensor loss = evaluate_closure(closure);
    for (auto& group : param_groups_) {
        const auto& options = static_cast<const AdamWOptions&>(group.options());
        std::vector<KernelBatch> batches;
        for (const torch::Tensor& parameter : without_repeats(group.params())) {
            if (!parameter.grad().defined()) {
                continue;
            }
            auto& state = state_of<AdamWParamState>(state_, parameter);
            if (!state.exp_avg().defined()) {
                state.exp_avg(torch::zeros_like(parameter));
                state.exp_avg_sq(torch::zeros_like(parameter));
            }
            if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
                state.max_exp_avg_sq(torch::zeros_like(parameter));
            }
            KernelBatch& batch = batch_for(batches, parameter, state.step() + 1);
            state.step(state.step() + 1);
            batch.first_moments.push_back(state.exp_avg());
            batch.second_moments.push_back(state.exp_avg_sq());
            if (options.amsgrad()) {
                batch.greatest_second_moments.push_back(state.max_exp_avg_sq());
            }
        }
        const auto [beta1, beta2] = options.betas();
        for (const KernelBatch& batch : batches) {
            // The kernel only reads it: one for all.
            const std::vector<torch::Tensor> steps(
                batch.parameters.size(),
                torch::full({}, static_cast<double>(batch.steps),
                            torch::TensorOptions(batch.device).dtype(torch::kFloat32)));
            at::_fused_adamw_(batch.parameters, batch.gradients, batch.first_moments,
                              batch.second_moments, batch.greatest_second_moments, steps,
                              options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                              options.amsgrad(), /*maximize=*/false);
        }
    }
    return loss;
}

torch::Tensor FusedSGD::step(LossClosure closure) {
    const torch::NoGradGuard no_grad;
    torch::Tensor loss = evaluate_closure(closure);
    for (auto& group : param_groups_) {
        const auto& options = static_cast<const SGDOptions&>(group.options());
        std::vector<KernelBatch> batches;
        for (const torch::Tensor& parameter : without_repeats(group.params())) {
            if (!parameter.grad().defined()) {
                continue;
            }
            if (options.momentum() == 0) {
                (void)batch_for(batches, parameter, 0);
                continue;
            }
            auto& state = state_of<SGDParamState>(state_, parameter);
            const bool is_first = !state.momentum_buffer().defined();
            if (is_first) {
                state.momentum_buffer(torch::empty_like(parameter));  // the kernel fills it
            }
            KernelBatch& batch = batch_for(batches, parameter, is_first ? 0 : 1);
            batch.first_moments.push_back(state.momentum_buffer());
        }
        for (const KernelBatch& batch : batches) {
            at::_fused_sgd_(batch.parameters, batch.gradients, batch.first_moments,
                            options.weight_decay(), options.momentum(), options.lr(),
                            options.dampening(), options.nesterov(), /*maximize=*/false,
                            /*is_first_step=*/options.momentum() != 0 && batch.steps == 0);
        }
    }
    return loss;
}

}  // namespace ddprun
