#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "tests/fake_gpu/cudart/work_note.hpp"
#include "tests/fake_gpu/machine/settings.hpp"
#include "tests/fake_gpu/operators/operators.hpp"

namespace fake_gpu {

namespace {

using at::Tensor;
using torch::jit::Stack;

/// Waits until the current stream of the device has run its tasks, and notes the work.
void await_stream(at::Device device) {
    c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
    cudaFakeGpuNoteWork(device.index());
}

/// The CUDA tensors of one call, each with the CPU tensor that the CPU's kernel is given instead.
class Aliases {
public:
    /// is_output: the kernel may resize the tensor, so an empty tensor gets memory of its own.
    Tensor on_cpu(const Tensor& tensor, bool is_output) {
        if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided) {
            return tensor;
        }
        for (const Alias& alias : all_) {
            if (alias.on_cuda.is_same(tensor)) {
                return alias.on_cpu;
            }
        }
        const bool is_fresh = is_output && tensor.numel() == 0;
        all_.push_back(
            {.on_cuda = tensor,
             .on_cpu = is_fresh ? at::empty({0}, tensor.options().device(at::kCPU)) : share(tensor),
             .is_fresh = is_fresh});
        return all_.back().on_cpu;
    }

    /// CUDA's kernels refuse tensors of two GPUs, but for those that take the tensors of a list one
    /// by one.
    void require_one_device(const c10::OperatorHandle& op) const {
        if (op.schema().name().starts_with("aten::_foreach_")) {
            return;
        }
        for (const Alias& alias : all_) {
            TORCH_CHECK(alias.on_cuda.device() == all_.front().on_cuda.device(),
                        "Expected all tensors to be on the same device, but found at least two "
                        "devices, ",
                        all_.front().on_cuda.device(), " and ", alias.on_cuda.device(), "! (",
                        op.schema().name(), ")");
        }
    }

    /// Returns the CUDA tensor for a result: the tensor that was given, or a new one on `device`.
    [[nodiscard]] Tensor on_cuda(const Tensor& result, at::Device device) const {
        if (!result.defined() || !result.is_cpu()) {
            return result;
        }
        for (const Alias& alias : all_) {
            if (alias.on_cpu.is_same(result)) {
                return alias.on_cuda;
            }
        }
        if (result.layout() != at::kStrided) {
            return result;
        }
        Tensor made =
            at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
        copy_bytes(made, result);
        return made;
    }

    /// Gives CUDA tensors the sizes and contents of the CPU tensors that the kernel has resized.
    void give_back() const {
        for (const Alias& alias : all_) {
            if (alias.on_cpu.sizes().equals(alias.on_cuda.sizes())) {
                continue;
            }
            if (alias.is_fresh) {
                at::native::resize_output(alias.on_cuda, alias.on_cpu.sizes());
            }
            alias.on_cuda.unsafeGetTensorImpl()->set_sizes_and_strides(alias.on_cpu.sizes(),
                                                                       alias.on_cpu.strides());
            if (alias.is_fresh) {
                copy_bytes(alias.on_cuda, alias.on_cpu);
            }
        }
    }

private:
    struct Alias {
        Tensor on_cuda;
        Tensor on_cpu;
        bool is_fresh = false;
    };

    /// Returns a CPU tensor over the same memory.
    static Tensor share(const Tensor& tensor) {
        auto kept = std::make_unique<at::Storage>(tensor.storage());
        at::DataPtr pointer(
            kept->mutable_data(), kept.get(),
            [](void* storage) { std::unique_ptr<at::Storage>(static_cast<at::Storage*>(storage)); },
            at::kCPU);
        (void)kept.release();
        constexpr bool kIsResizable = false;
        at::Storage storage(at::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                            std::move(pointer), nullptr, kIsResizable);
        Tensor shared = at::detail::make_tensor<at::TensorImpl>(
            std::move(storage), at::DispatchKeySet(at::DispatchKey::CPU), tensor.dtype());
        shared.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                            tensor.storage_offset());
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
            shared.unsafeGetTensorImpl()->set_wrapped_number(true);
        }
        return shared;
    }

    /// Copies the bytes of a tensor to a CUDA tensor of the same sizes and strides, which is new:
    /// its memory may be about to be poisoned.
    static void copy_bytes(const Tensor& to, const Tensor& from) {
        await_stream(to.device());
        if (from.numel() > 0) {
            const auto offset = static_cast<std::size_t>(from.storage_offset()) * from.itemsize();
            std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(),
                        std::min(from.storage().nbytes() - offset, to.storage().nbytes()));
        }
    }

    std::vector<Alias> all_;
};

/// Calls `function` with each tensor in `value`, and puts its answer there.
template <typename Function>
void replace_tensors(c10::IValue& value, const Function& function) {
    if (value.isTensor()) {
        value = function(value.toTensor());
    } else if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorVector()) {
            list.push_back(function(tensor));
        }
        value = list;
    }
}

/// A list of tensors of which some may be missing, as index() takes it.
bool is_list_of_optional_tensors(const c10::IValue& value, const c10::Argument& argument) {
    return value.isList() && !value.isTensorList() &&
           argument.type()->str().find("Tensor?") != std::string::npos;
}

void replace_optional_tensors(c10::IValue& value, Aliases& aliases) {
    constexpr bool kIsOutput = false;
    c10::List<std::optional<Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
        list.push_back(element.isTensor()
                           ? std::optional(aliases.on_cpu(element.toTensor(), kIsOutput))
                           : std::nullopt);
    }
    value = list;
}

/// Returns the device of the first CUDA tensor among the arguments, or of an argument that names a
/// device; otherwise the current device.
at::Device device_of(const Stack& stack, std::size_t first) {
    for (std::size_t i = first; i < stack.size(); ++i) {
        const c10::IValue& value = stack[i];
        if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) {
            return value.toTensor().device();
        }
        if (value.isTensorList()) {
            for (const Tensor& tensor : value.toTensorVector()) {
                if (tensor.defined() && tensor.is_cuda()) {
                    return tensor.device();
                }
            }
        }
        if (value.isDevice() && value.toDevice().is_cuda() && value.toDevice().has_index()) {
            return value.toDevice();
        }
    }
    return {at::kCUDA, c10::cuda::current_device()};
}

/// While the object lives, CUDA's seed and offset decide the numbers of the CPU's generator. Only
/// one object lives at a time: its constructor waits.
class RandomNumbers {
public:
    explicit RandomNumbers(const at::Generator& of_cuda)
        : lock_(mutex()), of_cpu_(at::detail::getDefaultCPUGenerator()) {
        auto* const generator = at::check_generator<at::CUDAGeneratorImpl>(of_cuda);
        std::uint64_t seed = 0;
        {
            const std::lock_guard lock(generator->mutex_);
            constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;
            constexpr std::uint64_t kIncrement = 4;  // as CUDA's kernels do for a few numbers
            const auto [start, offset] = generator->philox_engine_inputs(kIncrement);
            seed = start + kMultiplier * (offset + 1);
        }
        const std::lock_guard lock(of_cpu_.mutex());
        before_ = of_cpu_.get_state();
        of_cpu_.set_current_seed(seed);
    }
    ~RandomNumbers() {
        const std::lock_guard lock(of_cpu_.mutex());
        of_cpu_.set_state(before_);
    }
    RandomNumbers(const RandomNumbers&) = delete;
    RandomNumbers& operator=(const RandomNumbers&) = delete;

private:
    static std::mutex& mutex() {
        static std::mutex& only = *std::make_unique<std::mutex>().release();
        return only;
    }

    std::lock_guard<std::mutex> lock_;
    at::Generator of_cpu_;
    Tensor before_;
};

bool is_random(const c10::OperatorHandle& op) {
    return op.hasTag(at::Tag::nondeterministic_seeded);
}

void call_on_cpu(const c10::OperatorHandle& op, Stack* stack,
                 const std::optional<at::Generator>& random) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard no_cast(c10::autocast_dispatch_keyset);
    std::optional<RandomNumbers> numbers;
    if (random) {
        numbers.emplace(*random);
    }
    op.callBoxed(stack);
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
    poison_freed_memory();
    if (settings().is_traced) {
        (void)std::fprintf(stderr, "fake GPU: %s\n", toString(op.operator_name()).c_str());
    }
    const std::vector<c10::Argument>& arguments = op.schema().arguments();
    const std::size_t first = stack->size() - arguments.size();
    const at::Device device = device_of(*stack, first);
    await_stream(device);

    Aliases aliases;
    std::optional<at::Generator> random;
    if (is_random(op)) {
        random = at::cuda::detail::getDefaultCUDAGenerator(device.index());
    }
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        c10::IValue& value = (*stack)[first + i];
        const auto* const alias = arguments[i].alias_info();
        const bool is_output = alias != nullptr && alias->isWrite();
        if (is_list_of_optional_tensors(value, arguments[i])) {
            replace_optional_tensors(value, aliases);
        } else if (value.isDevice() && value.toDevice().is_cuda()) {
            value = at::Device(at::kCPU);
        } else if (value.isGenerator()) {
            random = value.toGenerator();
            value = c10::IValue();
        } else {
            replace_tensors(
                value, [&](const Tensor& tensor) { return aliases.on_cpu(tensor, is_output); });
        }
    }
    aliases.require_one_device(op);
    call_on_cpu(op, stack, random);
    aliases.give_back();
    for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
        replace_tensors((*stack)[i],
                        [&](const Tensor& result) { return aliases.on_cuda(result, device); });
    }
}

void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                     Stack* /*stack*/) {
    give_up("CPUs have no kernel of " + toString(op.operator_name()));
}

Tensor& copy(Tensor& to, const Tensor& from, bool non_blocking) {
    poison_freed_memory();
    const auto is_plain = [](const Tensor& tensor) {
        return tensor.layout() == at::kStrided && tensor.is_contiguous();
    };
    if (to.dtype() == from.dtype() && to.sizes().equals(from.sizes()) && is_plain(to) &&
        is_plain(from)) {
        return at::native::copy_(to, from, non_blocking);
    }
    for (const Tensor& tensor : {to, from}) {
        if (tensor.is_cuda()) {
            await_stream(tensor.device());
        }
    }
    constexpr bool kIsOutput = false;  // it is never resized
    Aliases aliases;
    Tensor to_on_cpu = aliases.on_cpu(to, kIsOutput);
    const at::AutoDispatchBelowADInplaceOrView below;
    to_on_cpu.copy_(aliases.on_cpu(from, kIsOutput));
    return to;
}

}  // namespace fake_gpu
