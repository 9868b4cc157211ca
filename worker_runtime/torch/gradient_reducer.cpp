#include "worker_runtime/torch/gradient_reducer.hpp"

#include <string>
#include <unordered_map>
#include <utility>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/module.h>

namespace ddprun::worker {

namespace {

/// How much is sent at once when a network is given to all ranks; PyTorch's own figure.
constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

void give_to_all(const ProcessGroup& group, const std::vector<torch::Tensor>& tensors) {
    if (!tensors.empty() && group.world_size() > 1) {
        torch::NoGradGuard no_grad;
        c10d::broadcast_coalesced(group.c10d(), tensors, kBroadcastBytes, 0);
    }
}

/// Buckets of indices into `parameters`, in the order in which backward fills them: the last layers
/// come first.
std::vector<std::vector<std::size_t>> lay_out(const std::vector<torch::Tensor>& parameters,
                                              const DistributedDataParallelOptions& options) {
    const std::vector<torch::Tensor> reversed(parameters.rbegin(), parameters.rend());
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        reversed, {options.first_bucket_bytes, options.bucket_bytes});
    for (std::vector<std::size_t>& bucket : buckets) {
        for (std::size_t& index : bucket) {
            index = parameters.size() - 1 - index;
        }
    }
    return std::move(buckets);
}

}  // namespace

struct GradientReducer::Engine {
    ProcessGroup group;
    torch::nn::Module& network;
    std::vector<torch::Tensor> buffers;  ///< empty: not to be broadcast
    std::unique_ptr<c10d::Reducer> reducer;
};

GradientReducer::GradientReducer(torch::nn::Module& network, ProcessGroup group,
                                 const DistributedDataParallelOptions& options)
    : engine_(std::make_unique<Engine>(Engine{std::move(group), network, {}, nullptr})) {
    std::vector<torch::Tensor> parameters;
    std::unordered_map<std::size_t, std::string> names;
    for (const auto& parameter : network.named_parameters()) {
        if (parameter.value().requires_grad()) {
            names.emplace(parameters.size(), parameter.key());
            parameters.push_back(parameter.value());
        }
    }
    TORCH_CHECK(!parameters.empty(),
                "DistributedDataParallel: the network has no parameter that takes a gradient");
    c10d::verify_params_across_processes(engine_->group.c10d(), parameters, std::nullopt);
    std::vector<torch::Tensor> all = network.parameters();
    const std::vector<torch::Tensor> buffers = network.buffers();
    all.insert(all.end(), buffers.begin(), buffers.end());
    give_to_all(engine_->group, all);
    if (options.broadcast_buffers) {
        engine_->buffers = buffers;
    }
    const std::vector<bool> is_sparse(parameters.size(), false);
    engine_->reducer = std::make_unique<c10d::Reducer>(
        parameters, lay_out(parameters, options), engine_->group.c10d(), is_sparse,
        static_cast<std::int64_t>(options.bucket_bytes), options.find_unused_parameters,
        /*gradient_as_bucket_view=*/false, std::move(names),
        static_cast<std::int64_t>(options.first_bucket_bytes),
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<std::int64_t>{});
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::before_forward() {
    if (is_synchronising && engine_->network.is_training() && torch::GradMode::is_enabled()) {
        give_to_all(engine_->group, engine_->buffers);
    }
}

void GradientReducer::before_backward(const std::vector<torch::Tensor>& outputs) {
    if (is_synchronising && torch::GradMode::is_enabled()) {
        engine_->reducer->prepare_for_backward(outputs);
    }
}

}  // namespace ddprun::worker
