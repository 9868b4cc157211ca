#include "worker_runtime/optim/clip_grad_norm.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "worker_runtime/optim/gradient_lists.hpp"

namespace ddprun {

namespace {

using worker::GradientList;

Result<void> check_norm(double max_norm, double norm_type) {
    if (norm_type > 0 && max_norm >= 0) {
        return {};
    }
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("cannot clip to a {}-norm of {}: the norm's type must be above 0, and "
                             "the norm at least 0",
                             norm_type, max_norm)};
}

/// The sum of |number|^norm_type over the gradients of this rank, or their largest |number|:
/// float64, on `device`.
torch::Tensor power_of_norm(const std::vector<GradientList>& lists, double norm_type,
                            torch::Device device) {
    std::vector<torch::Tensor> norms{
        torch::zeros({1}, torch::dtype(torch::kFloat64).device(device))};
    for (const GradientList& list : lists) {
        // A rank's part of a parameter may be empty, and has no largest number then.
        std::vector<torch::Tensor> gradients;
        std::ranges::copy_if(list.gradients, std::back_inserter(gradients),
                             [](const torch::Tensor& gradient) { return gradient.numel() > 0; });
        if (!gradients.empty()) {
            norms.push_back(torch::stack(torch::_foreach_norm(gradients, norm_type))
                                .to(norms.front().options()));
        }
    }
    const torch::Tensor all = torch::cat(norms);
    return std::isinf(norm_type) ? all.max() : all.pow(norm_type).sum();
}

torch::Tensor norm_of_power(const torch::Tensor& power, double norm_type) {
    return std::isinf(norm_type) ? power : power.pow(1 / norm_type);
}

void scale(const std::vector<GradientList>& lists, const torch::Tensor& norm, double max_norm) {
    // As PyTorch: never up, and no division by zero.
    const torch::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
    for (const GradientList& list : lists) {
        torch::_foreach_mul_(list.gradients, factor.to(list.gradients.front().options()));
    }
}

}  // namespace

Result<torch::Tensor> clip_grad_norm(ProcessGroup& group,
                                     const std::vector<torch::Tensor>& parameters, double max_norm,
                                     double norm_type) {
    if (const Result<void> right = check_norm(max_norm, norm_type); !right) {
        return right.error();
    }
    const torch::NoGradGuard no_grad;
    const std::vector<GradientList> lists = worker::gradient_lists(parameters);
    torch::Tensor power = power_of_norm(lists, norm_type, group.device());
    if (const Result<void> done =
            group.all_reduce(power, std::isinf(norm_type) ? Reduction::Max : Reduction::Sum);
        !done) {
        return done.error();
    }
    const torch::Tensor norm = norm_of_power(power, norm_type);
    // A GPU's norm may be anything if a rank was lost before it was computed.
    if (const Result<double> read = group.read("clipping gradients", norm); !read) {
        return read.error();
    }
    scale(lists, norm, max_norm);
    return norm;
}

Result<torch::Tensor> clip_grad_norm(const std::vector<torch::Tensor>& parameters, double max_norm,
                                     double norm_type) {
    if (const Result<void> right = check_norm(max_norm, norm_type); !right) {
        return right.error();
    }
    const torch::NoGradGuard no_grad;
    const std::vector<GradientList> lists = worker::gradient_lists(parameters);
    const torch::Device device = lists.empty() ? torch::Device(torch::kCPU) : lists.front().device;
    const torch::Tensor norm = norm_of_power(power_of_norm(lists, norm_type, device), norm_type);
    scale(lists, norm, max_norm);
    return norm;
}

}  // namespace ddprun
