#include "worker_runtime/nn/activation_checkpoint.hpp"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <mutex>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker_runtime/nn/autocast.hpp"

namespace ddprun {

namespace {

using torch::autograd::AutogradContext;

/// The states of these devices' random generators, by device.
std::vector<torch::Tensor> random_states(const std::vector<torch::Device>& devices) {
    std::vector<torch::Tensor> states;
    for (const torch::Device device : devices) {
        at::Generator generator = at::globalContext().defaultGenerator(device);
        const std::lock_guard lock(generator.mutex());
        states.push_back(generator.get_state());
    }
    return states;
}

void set_random_states(const std::vector<torch::Device>& devices,
                       const std::vector<torch::Tensor>& states) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
        at::Generator generator = at::globalContext().defaultGenerator(devices[i]);
        const std::lock_guard lock(generator.mutex());
        generator.set_state(states[i]);
    }
}

/// Autocast's settings for one kind of device. Without a cache: a tensor that is cast while no
/// gradients are recorded would be found there by a part of the network that needs them.
AutocastOptions autocast_now(torch::DeviceType device) {
    return {.dtype = at::autocast::get_autocast_dtype(device),
            .enabled = at::autocast::is_autocast_enabled(device),
            .cache = false};
}

/// One call of a segment, from forward to the end of backward.
struct Recomputation final : torch::CustomClassHolder {
    Segment segment;
    std::size_t inputs = 0;  ///< of the saved tensors the first so many; the rest are parameters
    AutocastOptions cpu_autocast;
    AutocastOptions gpu_autocast;
    std::vector<torch::Device> devices;  ///< whose random states matter; empty: none does
    std::vector<torch::Tensor> random;   ///< these

    std::vector<torch::Tensor> compute(const std::vector<torch::Tensor>& arguments) const {
        const Autocast on_cpu(torch::kCPU, cpu_autocast);
        const Autocast on_gpu(torch::kCUDA, gpu_autocast);
        return segment(arguments);
    }
};

/// The parameters are arguments, so that the outer graph leads to them: their gradients are added
/// up there, and DistributedDataParallel sees them become ready.
struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
    static torch::autograd::variable_list forward(
        AutogradContext* context, const c10::intrusive_ptr<Recomputation>& recomputation,
        at::TensorList tensors) {
        context->saved_data["recomputation"] = c10::IValue::make_capsule(recomputation);
        context->save_for_backward(tensors.vec());
        context->set_materialize_grads(false);
        return recomputation->compute(tensors.slice(0, recomputation->inputs).vec());
    }

    static torch::autograd::variable_list backward(AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
        TORCH_CHECK(!at::GradMode::is_enabled(),
                    "checkpoint_activations: no second derivatives; call backward() without "
                    "create_graph, or the segment without it");
        const auto capsule = context->saved_data.at("recomputation").toCapsule();
        const auto& recomputation = static_cast<const Recomputation&>(*capsule);
        const std::vector<torch::Tensor> saved = context->get_saved_variables();
        // Inputs are cut off from the graph behind them; parameters are leaves already.
        std::vector<torch::Tensor> sources = saved;
        for (std::size_t i = 0; i < recomputation.inputs; ++i) {
            sources[i] = saved[i].detach().requires_grad_(saved[i].requires_grad());
        }
        std::vector<torch::Tensor> wanted;
        std::copy_if(sources.begin(), sources.end(), std::back_inserter(wanted),
                     [](const torch::Tensor& tensor) { return tensor.requires_grad(); });

        const std::vector<torch::Tensor> found =
            recompute(recomputation, sources, wanted, gradients);
        torch::autograd::variable_list result(1);  // of the recomputation itself, no tensor
        std::size_t next = 0;
        for (const torch::Tensor& source : sources) {
            result.push_back(source.requires_grad() ? found[next++] : torch::Tensor());
        }
        return result;
    }

private:
    static std::vector<torch::Tensor> recompute(const Recomputation& recomputation,
                                                at::TensorList sources,
                                                const std::vector<torch::Tensor>& wanted,
                                                const std::vector<torch::Tensor>& gradients) {
        const std::vector<torch::Tensor> now = random_states(recomputation.devices);
        set_random_states(recomputation.devices, recomputation.random);
        std::vector<torch::Tensor> outputs;
        {
            const at::AutoGradMode with_grad(true);
            outputs = recomputation.compute(sources.slice(0, recomputation.inputs).vec());
        }
        set_random_states(recomputation.devices, now);
        TORCH_CHECK(outputs.size() == gradients.size(), "checkpoint_activations: the segment gave ",
                    gradients.size(), " tensors at first and ", outputs.size(),
                    " when backward computed them again; it must do the same both times");
        std::vector<torch::Tensor> roots;
        std::vector<torch::Tensor> root_gradients;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            if (gradients[i].defined() && outputs[i].requires_grad()) {
                roots.push_back(outputs[i]);
                root_gradients.push_back(gradients[i]);
            }
        }
        if (roots.empty()) {
            return std::vector<torch::Tensor>(wanted.size());
        }
        // A parameter's own hooks are for the gradient that leaves the outer graph, not for the one
        // on its way there: they are taken away meanwhile.
        const at::TensorList parameters = sources.slice(recomputation.inputs);
        std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks(
            parameters.size());
        const auto exchange_hooks = [&] {
            for (std::size_t i = 0; i < parameters.size(); ++i) {
                hooks[i].swap(torch::autograd::impl::hooks(parameters[i]));
            }
        };
        exchange_hooks();
        const auto hooks_are_back = c10::make_scope_exit(exchange_hooks);
        return torch::autograd::grad(roots, wanted, root_gradients, /*retain_graph=*/false,
                                     /*create_graph=*/false, /*allow_unused=*/true);
    }
};

/// The CPU and the GPUs of `tensors`.
std::vector<torch::Device> devices_of(const std::vector<torch::Tensor>& tensors) {
    std::vector<torch::Device> devices{torch::kCPU};
    for (const torch::Tensor& tensor : tensors) {
        if (tensor.is_cuda() &&
            std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
            devices.push_back(tensor.device());
        }
    }
    return devices;
}

}  // namespace

std::vector<torch::Tensor> checkpoint_activations(Segment segment,
                                                  const std::vector<torch::Tensor>& inputs,
                                                  const std::vector<torch::Tensor>& parameters,
                                                  ActivationCheckpointOptions options) {
    std::vector<torch::Tensor> tensors = inputs;
    std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(tensors),
                 [](const torch::Tensor& parameter) { return parameter.requires_grad(); });
    auto recomputation = c10::make_intrusive<Recomputation>();
    recomputation->segment = std::move(segment);
    recomputation->inputs = inputs.size();
    recomputation->cpu_autocast = autocast_now(torch::kCPU);
    recomputation->gpu_autocast = autocast_now(torch::kCUDA);
    if (options.keep_random_state) {
        recomputation->devices = devices_of(tensors);
        recomputation->random = random_states(recomputation->devices);
    }
    return CheckpointFunction::apply(recomputation, at::TensorList(tensors));
}

}  // namespace ddprun
