#pragma once

#include <unordered_set>
#include <vector>

#include <torch/types.h>

namespace ddprun {

/// `parameters`, each once, in their order. A weight that a network has under two names is twice in
/// torch::nn::Module::parameters(), other than in Python's.
inline std::vector<torch::Tensor> without_repeats(const std::vector<torch::Tensor>& parameters) {
    std::unordered_set<const c10::TensorImpl*> seen;
    seen.reserve(parameters.size());
    std::vector<torch::Tensor> once;
    once.reserve(parameters.size());
    for (const torch::Tensor& parameter : parameters) {
        if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
            once.push_back(parameter);
        }
    }
    return once;
}

}  // namespace ddprun
