#pragma once

#include <algorithm>
#include <vector>

#include <torch/types.h>

#include "worker_runtime/nn/without_repeats.hpp"

namespace ddprun::worker {

/// Gradients of one type on one device: LibTorch's foreach operators take them in a few kernels.
struct GradientList {
    torch::Device device;
    torch::ScalarType dtype;
    std::vector<torch::Tensor> gradients;  ///< at least one
};

/// The gradients of `parameters`, each once. Parameters without one are left out.
inline std::vector<GradientList> gradient_lists(const std::vector<torch::Tensor>& parameters) {
    std::vector<GradientList> lists;
    for (const torch::Tensor& parameter : without_repeats(parameters)) {
        const torch::Tensor& gradient = parameter.grad();
        if (!gradient.defined()) {
            continue;
        }
        auto list = std::ranges::find_if(lists, [&](const GradientList& one) {
            return one.device == gradient.device() && one.dtype == gradient.scalar_type();
        });
        if (list == lists.end()) {
            list = lists.insert(list, {gradient.device(), gradient.scalar_type(), {}});
        }
        list->gradients.push_back(gradient);
    }
    return lists;
}

}  // namespace ddprun::worker
