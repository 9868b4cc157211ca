// Registers the operators when the library is loaded, which the fake libcudart does when it is
// first asked for a device.

#include <ATen/Context.h>
#include <ATen/core/op_registration/op_registration.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>

#include <torch/library.h>

#include "tests/fake_gpu/operators/operators.hpp"

namespace {

using c10::DispatchKey;

constexpr std::string_view kNamespace = "aten::";

/// CUDA's own kernels of these launch none: they make, describe or view memory.
constexpr std::array<std::string_view, 45> kOfCuda = {
    "_coalesced_",
    "_conj",
    "_copy_from",
    "_copy_from_and_resize",
    "_efficientzerotensor",
    "_has_same_storage_numel",
    "_local_scalar_dense",
    "_neg_view",
    "_nested_tensor_from_mask",
    "_pin_memory",
    "_reshape_alias",
    "_resize_output_",
    "_to_copy",
    "alias",
    "as_strided",
    "copy_",
    "detach",
    "diagonal",
    "empty",
    "empty_quantized",
    "empty_strided",
    "expand",
    "is_pinned",
    "is_set_to",
    "lift",
    "lift_fresh",
    "new_empty_strided",
    "permute",
    "pin_memory",
    "record_stream",
    "resize_",
    "select",
    "select_scatter",
    "set_",
    "slice",
    "sparse_resize_",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
};

/// CUDA's kernel of these chooses cuDNN's, or that of another operator; the CPU has its own choice.
constexpr std::array<std::string_view, 3> kOfCpu = {"convolution", "convolution_backward",
                                                    "convolution_overrideable"};

template <std::size_t count>
bool has(const std::array<std::string_view, count>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_cpu_kernel(const c10::OperatorHandle& op) {
    const std::array keys = {DispatchKey::CPU, DispatchKey::CompositeExplicitAutograd,
                             DispatchKey::CompositeExplicitAutogradNonFunctional,
                             DispatchKey::CompositeImplicitAutograd};
    return std::any_of(keys.begin(), keys.end(),
                       [&op](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

/// Each operator is registered a second time for CUDA, of which LibTorch warns.
class Quiet final : public c10::WarningHandler {
public:
    void process(const c10::Warning& /*warning*/) override {}
};

void register_operators(torch::Library& library) {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& full : dispatcher.getAllOpNames()) {
        if (!std::string_view(full.name).starts_with(kNamespace)) {
            continue;
        }
        const std::string name = full.name.substr(kNamespace.size());
        const auto op = dispatcher.findOp(full);
        if (!op || !op->hasSchema() || has(kOfCuda, name) ||
            !(op->hasKernelForDispatchKey(DispatchKey::CUDA) || has(kOfCpu, name))) {
            continue;
        }
        const std::string overload =
            name + (full.overload_name.empty() ? "" : "." + full.overload_name);
        library.impl(overload.c_str(),
                     has_cpu_kernel(*op)
                         ? torch::CppFunction::makeFromBoxedFunction<&fake_gpu::run_on_cpu>()
                         : torch::CppFunction::makeFromBoxedFunction<&fake_gpu::refuse_operator>());
    }
    library.impl("copy_", torch::CppFunction::makeFromUnboxedFunction(fake_gpu::copy));
}

struct Registration {
    Registration() : library(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__) {
        Quiet quiet;
        const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
        // With cuDNN enabled, batch norm would call it.
        at::globalContext().setUserEnabledCuDNN(false);
        register_operators(library);
    }

    torch::Library library;
};

/// The object is never destroyed: threads run operators until the process has ended.
[[maybe_unused]] const Registration& registration = *std::make_unique<Registration>().release();

}  // namespace
