#include "worker_runtime/optim/gradient_scaler.hpp"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>

#include <utility>
#include <vector>

#include <torch/utils.h>

#include "worker_runtime/optim/gradient_lists.hpp"
#include "worker_runtime/parallel/zero/sharded_optimizer.hpp"
#include "worker_runtime/state/training_state.hpp"

namespace ddprun {

namespace {

std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
    std::vector<torch::Tensor> parameters;
    for (const auto& group : optimizer.param_groups()) {
        parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    }
    return parameters;
}

}  // namespace

GradientScaler::GradientScaler(ProcessGroup group, GradientScalerOptions options)
    : group_(std::move(group)), options_(options) {
    TORCH_CHECK(options.initial_scale > 0, "GradientScaler: initial_scale is ",
                options.initial_scale, ", it must be above 0");
    TORCH_CHECK(options.growth_factor > 1, "GradientScaler: growth_factor is ",
                options.growth_factor, ", it must be above 1");
    TORCH_CHECK(options.backoff_factor > 0 && options.backoff_factor < 1,
                "GradientScaler: backoff_factor is ", options.backoff_factor,
                ", it must be between 0 and 1");
    TORCH_CHECK(options.growth_interval > 0, "GradientScaler: growth_interval is ",
                options.growth_interval, ", it must be above 0");
    const auto on_device = torch::TensorOptions(group_.device());
    scale_ = torch::full({}, options.enabled ? options.initial_scale : 1.0,
                         on_device.dtype(torch::kFloat32));
    growth_tracker_ = torch::zeros({}, on_device.dtype(torch::kInt32));
}

torch::Tensor GradientScaler::scale(const torch::Tensor& loss) const {
    return options_.enabled ? loss * scale_.to(loss.device()) : loss;
}

Result<void> GradientScaler::unscale(torch::optim::Optimizer& optimizer) {
    if (!options_.enabled) {
        return {};
    }
    if (seen_.contains(&optimizer)) {
        return Error{ErrorCode::InvalidArgument,
                     "GradientScaler: these gradients are unscaled already; call update() after "
                     "the step, before the next iteration"};
    }
    if (const auto* const sharded = dynamic_cast<const worker::ShardedOptimizerBase*>(&optimizer);
        sharded != nullptr && sharded->shards_gradients()) {
        return Error{ErrorCode::InvalidArgument,
                     "GradientScaler: the ranks share out this optimizer's gradients, and the "
                     "parameters have none to unscale; leave shards_gradients off"};
    }
    const torch::NoGradGuard no_grad;
    const std::vector<worker::GradientList> lists =
        worker::gradient_lists(parameters_of(optimizer));
    for (const worker::GradientList& list : lists) {
        if (list.dtype == torch::kFloat16) {
            return Error{ErrorCode::InvalidArgument,
                         "GradientScaler: a gradient is float16; parameters must be float32, "
                         "Autocast casts them for what computes in float16"};
        }
    }
    torch::Tensor found_inf = torch::zeros_like(scale_);
    // By way of float64: the reciprocal of a great scale is rounded only once.
    const torch::Tensor inverse = scale_.to(torch::kFloat64).reciprocal().to(torch::kFloat32);
    for (const worker::GradientList& list : lists) {
        torch::Tensor found_there = torch::zeros({}, found_inf.options().device(list.device));
        at::_amp_foreach_non_finite_check_and_unscale_(list.gradients, found_there,
                                                       inverse.to(list.device));
        found_inf = torch::maximum(found_inf, found_there.to(found_inf.device()));
    }
    if (group_.world_size() > 1) {
        if (Result<void> agreed = group_.all_reduce(found_inf, Reduction::Max); !agreed) {
            return agreed;
        }
    }
    seen_.insert({&optimizer, {.stage = Stage::Unscaled, .found_inf = found_inf}});
    return {};
}

Result<bool> GradientScaler::step(torch::optim::Optimizer& optimizer) {
    if (!options_.enabled) {
        (void)optimizer.step();
        return true;
    }
    auto seen = seen_.find(&optimizer);
    if (seen == seen_.end()) {
        if (const Result<void> unscaled = unscale(optimizer); !unscaled) {
            return unscaled.error();
        }
        seen = seen_.find(&optimizer);
    } else if (seen->second.stage == Stage::Stepped) {
        return Error{ErrorCode::InvalidArgument,
                     "GradientScaler: this optimizer has stepped already; call update() before its "
                     "next step"};
    }
    seen->second.stage = Stage::Stepped;
    const Result<double> found_inf =
        group_.read("agreeing on finite gradients", seen->second.found_inf);
    if (!found_inf) {
        return found_inf.error();
    }
    const bool is_finite = *found_inf == 0;
    if (is_finite) {
        (void)optimizer.step();
    }
    return is_finite;
}

Result<void> GradientScaler::update() {
    if (!options_.enabled) {
        return {};
    }
    if (seen_.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "GradientScaler: update() without a step() or unscale() since the last one"};
    }
    torch::Tensor found_inf = torch::zeros_like(scale_);
    for (const auto& [optimizer, seen] : seen_) {
        found_inf = torch::maximum(found_inf, seen.found_inf);
    }
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
    seen_.clear();
    return {};
}

void GradientScaler::add_to(TrainingState& state, const std::string& name) {
    state.add(name + ".scale", scale_);
    state.add(name + ".growth_tracker", growth_tracker_);
}

}  // namespace ddprun
