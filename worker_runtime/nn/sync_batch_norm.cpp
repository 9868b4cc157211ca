#include "worker_runtime/nn/sync_batch_norm.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/container/any.h>

namespace ddprun {

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// A group, for autograd to keep between forward and backward.
struct HeldGroup final : torch::CustomClassHolder {
    explicit HeldGroup(ProcessGroup held) : group(std::move(held)) {}
    ProcessGroup group;
};

/// All dimensions but that of the channels.
std::vector<std::int64_t> sample_dimensions(const Tensor& input) {
    std::vector<std::int64_t> dimensions;
    for (std::int64_t i = 0; i < input.dim(); ++i) {
        if (i != 1) {
            dimensions.push_back(i);
        }
    }
    return dimensions;
}

/// A value per channel in a shape that works with `input`.
Tensor per_channel(const Tensor& values, const Tensor& input) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
    shape[1] = values.numel();
    return values.view(shape);
}

/// float32 for what has less precision: sums are taken in it.
Tensor precise(const Tensor& tensor) {
    return tensor.scalar_type() == torch::kFloat64 ? tensor : tensor.to(torch::kFloat32);
}

/// Over all ranks.
struct Statistics {
    Tensor mean;
    Tensor variance;  ///< biased
    double count = 0;
};

Statistics statistics_of(ProcessGroup& group, const Tensor& input) {
    const std::int64_t channels = input.size(1);
    const std::int64_t own_count = input.numel() / channels;
    const auto dimensions = sample_dimensions(input);
    Tensor mean = torch::zeros({channels}, input.options());
    Tensor squares = torch::zeros({channels}, input.options());
    if (own_count > 0) {
        mean = input.mean(dimensions);
        squares = (input - per_channel(mean, input)).square().sum(dimensions);
    }
    const Tensor own = torch::cat({mean, squares, torch::full({1}, own_count, input.options())});
    const Result<Tensor> all = group.all_gather(own);
    TORCH_CHECK_WITH(DistBackendError, all.has_value(), "SyncBatchNorm: ", all.error().what);
    // Squares around each rank's own mean, moved to the mean of all: sums of squares around zero
    // would lose what a variance much smaller than the mean consists of.
    const Tensor means = all->narrow(1, 0, channels);
    const Tensor counts = all->narrow(1, 2 * channels, 1);
    const Tensor count = counts.sum();
    Statistics found;
    const Result<double> read = group.read("SyncBatchNorm", count);
    TORCH_CHECK_WITH(DistBackendError, read.has_value(), read.error().what);
    found.count = *read;
    found.mean = (means * counts).sum(0) / count;
    const Tensor all_squares =
        (all->narrow(1, channels, channels) + counts * (means - found.mean).square()).sum(0);
    found.variance = all_squares / count;
    return found;
}

class Normalisation final : public torch::autograd::Function<Normalisation> {
public:
    static Tensor forward(AutogradContext* context, const Variable& input, const Variable& weight,
                          const Variable& bias, const Tensor& mean, const Tensor& scale,
                          double count, const c10::intrusive_ptr<HeldGroup>& group) {
        context->save_for_backward({input, weight, mean, scale});
        context->saved_data["count"] = count;
        context->saved_data["group"] = c10::IValue::make_capsule(group);
        const Tensor normalised =
            (precise(input) - per_channel(mean, input)) * per_channel(scale, input);
        const Tensor output =
            normalised * per_channel(precise(weight), input) + per_channel(precise(bias), input);
        return output.to(input.scalar_type());
    }

    static variable_list backward(AutogradContext* context, const variable_list& gradients) {
        const variable_list saved = context->get_saved_variables();
        const Tensor& input = saved[0];
        const Tensor& weight = saved[1];
        const Tensor& mean = saved[2];
        const Tensor& scale = saved[3];
        const double count = context->saved_data["count"].toDouble();
        const auto held =
            c10::static_intrusive_pointer_cast<HeldGroup>(context->saved_data["group"].toCapsule());
        const std::int64_t channels = input.size(1);
        const auto dimensions = sample_dimensions(input);
        const Tensor gradient = precise(gradients[0]);
        const Tensor normalised =
            (precise(input) - per_channel(mean, input)) * per_channel(scale, input);
        const Tensor of_bias = gradient.sum(dimensions);
        const Tensor of_weight = (gradient * normalised).sum(dimensions);
        Tensor of_input;
        if (context->needs_input_grad(0)) {
            Tensor sums = torch::cat({of_bias, of_weight});
            const Result<void> done = held->group.all_reduce(sums);
            TORCH_CHECK_WITH(DistBackendError, done.has_value(),
                             "SyncBatchNorm: ", done.error().what);
            sums /= count;
            const Tensor slope = scale * precise(weight);
            of_input = (gradient - per_channel(sums.narrow(0, 0, channels), input) -
                        normalised * per_channel(sums.narrow(0, channels, channels), input)) *
                       per_channel(slope, input);
            of_input = of_input.to(input.scalar_type());
        }
        return {of_input,
                of_weight.to(weight.scalar_type()),
                of_bias.to(weight.scalar_type()),
                Tensor(),
                Tensor(),
                Tensor(),
                Tensor()};
    }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     ProcessGroup group)
    : NormImplBase(options_), group_(std::move(group)) {}

void SyncBatchNormImpl::_check_input_dim(const Tensor& input) {
    TORCH_CHECK(input.dim() >= 2 && input.size(1) == options.num_features(), "SyncBatchNorm of ",
                options.num_features(),
                " channels takes an input [n, channels, ...], and this one is of shape ",
                input.sizes());
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
    _check_input_dim(input);
    if (!is_training() || group_.world_size() == 1) {
        if (is_training() && num_batches_tracked.defined()) {
            num_batches_tracked += 1;
        }
        return torch::nn::functional::detail::batch_norm(
            input, running_mean, running_var, weight, bias,
            is_training() || !options.track_running_stats(), momentum_now(), options.eps());
    }
    Statistics all;
    {
        const torch::NoGradGuard no_grad;
        all = statistics_of(group_, precise(input.detach()));
        TORCH_CHECK(all.count > 1, "SyncBatchNorm: all ranks together have ", all.count,
                    " values per channel; training takes more than one");
        if (num_batches_tracked.defined()) {
            num_batches_tracked += 1;
            const double momentum = momentum_now();
            const auto follow = [momentum](Tensor& running, const Tensor& now) {
                running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
            };
            follow(running_mean, all.mean);
            follow(running_var, all.variance * (all.count / (all.count - 1)));
        }
    }
    const Tensor scale = (all.variance + options.eps()).rsqrt();
    // A function of autograd takes no undefined tensor.
    const bool is_affine = options.affine();
    return Normalisation::apply(input, is_affine ? weight : torch::ones_like(scale),
                                is_affine ? bias : torch::zeros_like(scale), all.mean, scale,
                                all.count, c10::make_intrusive<HeldGroup>(group_));
}

double SyncBatchNormImpl::momentum_now() const {
    if (options.momentum().has_value()) {
        return *options.momentum();
    }
    return num_batches_tracked.defined() ? 1.0 / num_batches_tracked.item<double>() : 0.0;
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
    stream << "ddprun::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
           << ", over " << group_.world_size() << " ranks)";
}

namespace {

using torch::nn::AnyModule;
using torch::nn::Sequential;

bool is_batch_norm(const torch::nn::Module& module) {
    return module.as<torch::nn::BatchNorm1dImpl>() != nullptr ||
           module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
           module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

/// The replacement of `module`, called `name`.
AnyModule converted(const std::string& name, const AnyModule& module, const ProcessGroup& group) {
    const std::shared_ptr<torch::nn::Module> plain = module.ptr();
    if (const auto* norm = plain->as<torch::nn::BatchNorm1dImpl>()) {
        return AnyModule(SyncBatchNorm(*norm, group));
    }
    if (const auto* norm = plain->as<torch::nn::BatchNorm2dImpl>()) {
        return AnyModule(SyncBatchNorm(*norm, group));
    }
    if (const auto* norm = plain->as<torch::nn::BatchNorm3dImpl>()) {
        return AnyModule(SyncBatchNorm(*norm, group));
    }
    for (const auto& within : plain->named_modules(name)) {
        TORCH_CHECK(!is_batch_norm(*within.value()), "convert_sync_batch_norm: ", within.key(),
                    " is a batch normalisation within ", name, ", a ", plain->name(),
                    ": nothing can be put into it from outside; build it with "
                    "ddprun::SyncBatchNorm");
    }
    return module;
}

}  // namespace

Sequential convert_sync_batch_norm(const Sequential& network, const ProcessGroup& group) {
    Sequential result;
    const auto named = network->named_children();
    std::size_t number = 0;
    for (const AnyModule& module : *network) {
        const std::string& name = named[number++].key();
        result->push_back(name, converted(name, module, group));
    }
    result->train(network->is_training());
    return result;
}

}  // namespace ddprun
