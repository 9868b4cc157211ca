#include "worker_runtime/state/dtype_names.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

struct DtypeName {
    torch::ScalarType type;
    const char* name;
};

/// The types that both LibTorch and the safetensors format know.
constexpr std::array<DtypeName, 18> kDtypeNames = {{
    {torch::kFloat64, "F64"},
    {torch::kFloat32, "F32"},
    {torch::kFloat16, "F16"},
    {torch::kBFloat16, "BF16"},
    {torch::kInt64, "I64"},
    {torch::kInt32, "I32"},
    {torch::kInt16, "I16"},
    {torch::kInt8, "I8"},
    {torch::kUInt64, "U64"},
    {torch::kUInt32, "U32"},
    {torch::kUInt16, "U16"},
    {torch::kUInt8, "U8"},
    {torch::kBool, "BOOL"},
    {torch::kComplexFloat, "C64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
}};

}  // namespace

std::optional<torch::ScalarType> scalar_type_of(std::string_view name) {
    const auto* const found = std::find_if(kDtypeNames.begin(), kDtypeNames.end(),
                                           [&](const DtypeName& one) { return one.name == name; });
    return found == kDtypeNames.end() ? std::nullopt : std::optional(found->type);
}

Result<std::vector<TensorView>> views_of(const StateTensors& tensors) {
    std::vector<TensorView> views;
    for (const auto& [name, state] : tensors) {
        const torch::Tensor& tensor = state.tensor;
        const auto* const found =
            std::find_if(kDtypeNames.begin(), kDtypeNames.end(),
                         [&](const DtypeName& one) { return one.type == tensor.scalar_type(); });
        if (found == kDtypeNames.end()) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("tensor {} is of type {}, which safetensors does not have",
                                     name, c10::str(tensor.scalar_type()))};
        }
        views.push_back(
            {.name = name,
             .dtype = found->name,
             .shape = {tensor.sizes().begin(), tensor.sizes().end()},
             .bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()},
             .layout = state.layout});
    }
    return views;
}

}  // namespace ddprun::worker
