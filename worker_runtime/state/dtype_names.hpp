#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/tensor_view.hpp"
#include "worker_runtime/state/state_tensors.hpp"

/// LibTorch's types and tensors as the safetensors format has them.
namespace ddprun::worker {

/// The type that the format calls `name`; nothing: LibTorch has none.
[[nodiscard]] std::optional<torch::ScalarType> scalar_type_of(std::string_view name);

/// Shows tensors, which are contiguous and on the CPU. InvalidArgument for a type that the format
/// lacks.
[[nodiscard]] Result<std::vector<TensorView>> views_of(const StateTensors& tensors);

}  // namespace ddprun::worker
