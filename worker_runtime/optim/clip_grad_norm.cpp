#include "worker_runtime/optim/clip_grad_norm.hpp"

#include <cmath>

#include <fmt/format.h>

#include "worker_runtime/nn/without_repeats.hpp"

namespace ddprun {

Result<torch::Tensor> clip_grad_norm(ProcessGroup& group,
                                     const std::vector<torch::Tensor>& parameters, double max_norm,
                                     double norm_type) {
    if (!(norm_type > 0) || !(max_norm >= 0)) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("cannot clip to a {}-norm of {}: the norm's type must be above 0, "
                                 "and the norm at least 0",
                                 norm_type, max_norm)};
    }
    const torch::NoGradGuard no_grad;
    const bool is_maximum = std::isinf(norm_type);
    std::vector<torch::Tensor> gradients;
    torch::Tensor norm = torch::zeros({}, torch::dtype(torch::kFloat64).device(group.device()));
    for (const torch::Tensor& parameter : without_repeats(parameters)) {
        if (parameter.grad().defined()) {
            gradients.push_back(parameter.grad());
            const torch::Tensor own =
                torch::linalg_vector_norm(gradients.back(), norm_type).to(norm.options());
            norm = is_maximum ? torch::maximum(norm, own) : norm + own.pow(norm_type);
        }
    }
    const Result<void> done = group.all_reduce(norm, is_maximum ? Reduction::Max : Reduction::Sum);
    if (!done) {
        return done.error();
    }
    if (!is_maximum) {
        norm = norm.pow(1 / norm_type);
    }
    // A GPU's norm may be anything if a rank was lost before it was computed.
    if (const Result<double> read = group.read("clipping gradients", norm); !read) {
        return read.error();
    }
    // As PyTorch: never up, and no division by zero.
    const torch::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
    for (torch::Tensor& gradient : gradients) {
        gradient.mul_(factor.to(gradient.options()));
    }
    return norm;
}

}  // namespace ddprun
