#pragma once

#include <cstdint>

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

namespace digits {

/// Two convolutions and two linear layers, 38,282 parameters: float32 [n, 1, 8, 8] to the logits of
/// ten classes, [n, 10]. The weights come from LibTorch's random state and live on `device`.
[[nodiscard]] torch::nn::Sequential make_network(torch::Device device);

/// A number that changes when any bit of any parameter does.
[[nodiscard]] std::uint64_t parameter_hash(const torch::nn::Module& network);

}  // namespace digits
