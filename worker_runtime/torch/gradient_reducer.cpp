#include "worker_runtime/torch/gradient_reducer.hpp"

#include <algorithm>
#include <limits>
#include <memory>
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

/// The bucket with the fewest numbers: the stop word costs a copy of what it travels with.
std::size_t lightest(const std::vector<std::vector<std::size_t>>& buckets,
                     const std::vector<torch::Tensor>& parameters) {
    std::size_t found = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        std::int64_t count = 0;
        for (const std::size_t index : buckets[i]) {
            count += parameters[index].numel();
        }
        if (count < least) {
            least = count;
            found = i;
        }
    }
    return found;
}

/// c10d::Reducer expects that its buckets are laid out anew after the first step, and until then
/// stores every parameter at each backward for that. Here they never are.
class FixedReducer final : public c10d::Reducer {
public:
    template <typename... Arguments>
    explicit FixedReducer(Arguments&&... arguments)
        : Reducer(std::forward<Arguments>(arguments)...) {
        has_rebuilt_bucket_ = true;
    }
};

struct HookState {
    ProcessGroup group;
    std::size_t carrier = 0;             ///< index of the bucket that the stop word travels with
    std::shared_ptr<bool> is_adding_up;  ///< the engine's
};

/// Averages a bucket over all ranks. On CPUs, where a collective's latency is that of a whole step
/// of a small network, one bucket carries the ranks' stop words along.
class AveragingHook final : public c10d::CppCommHookInterface<HookState> {
public:
    explicit AveragingHook(HookState state) : CppCommHookInterface(std::move(state)) {}

    c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
        *state_.is_adding_up = false;
        const int world_size = state_.group.world_size();
        std::vector<torch::Tensor> tensors{bucket.getBufferRef()};
        if (world_size == 1) {
            const torch::Device device = tensors.front().device();
            auto done = c10::make_intrusive<c10::ivalue::Future>(
                c10::TensorType::get(), device.is_cpu() ? std::vector<torch::Device>()
                                                        : std::vector<torch::Device>{device});
            done->markCompleted(tensors.front());
            return done;
        }
        tensors.front().div_(world_size);
        if (!tensors.front().is_cpu()) {
            return state_.group.c10d()->allreduce(tensors)->getFuture();
        }
        if (bucket.getIndex() != state_.carrier) {
            return state_.group.unless_lost(state_.group.c10d()->allreduce(tensors)->getFuture());
        }
        StopBallot& ballot = state_.group.stop_ballot();
        ballot.word = torch::full({1}, ballot.is_stop_wanted() ? 1 : 0,
                                  tensors.front().options().requires_grad(false));
        tensors.push_back(ballot.word);
        return state_.group.unless_lost(
            state_.group.c10d()->allreduce_coalesced(tensors)->getFuture());
    }
};

}  // namespace

struct GradientReducer::Engine {
    ProcessGroup group;
    torch::nn::Module& network;
    std::vector<torch::Tensor> buffers;  ///< empty: not to be broadcast
    std::vector<torch::Tensor> parameters;
    std::unique_ptr<FixedReducer> reducer;
    /// A no_sync() pass has been since the last one that averages.
    std::shared_ptr<bool> is_adding_up = std::make_shared<bool>(false);

    /// Nothing is held once the gradients are cleared, whatever has been added up before.
    [[nodiscard]] bool holds_gradients() const {
        return *is_adding_up && std::any_of(parameters.begin(), parameters.end(),
                                            [](const torch::Tensor& parameter) {
                                                return parameter.grad().defined();
                                            });
    }
};

GradientReducer::GradientReducer(torch::nn::Module& network, ProcessGroup group,
                                 const DistributedDataParallelOptions& options)
    : engine_(std::make_unique<Engine>(Engine{.group = std::move(group), .network = network})) {
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
    const std::vector<std::vector<std::size_t>> buckets = lay_out(parameters, options);
    engine_->parameters = parameters;
    engine_->reducer = std::make_unique<FixedReducer>(
        parameters, buckets, engine_->group.c10d(), is_sparse,
        static_cast<std::int64_t>(options.bucket_bytes), options.find_unused_parameters,
        /*gradient_as_bucket_view=*/false, std::move(names),
        static_cast<std::int64_t>(options.first_bucket_bytes),
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<std::int64_t>{});
    engine_->reducer->register_comm_hook(
        std::make_unique<AveragingHook>(HookState{.group = engine_->group,
                                                  .carrier = lightest(buckets, parameters),
                                                  .is_adding_up = engine_->is_adding_up}));
    engine_->group.stop_ballot().is_adding_up[this] = [engine = engine_.get()] {
        return engine->holds_gradients();
    };
}

GradientReducer::~GradientReducer() {
    engine_->group.stop_ballot().is_adding_up.erase(this);
}

void GradientReducer::before_forward() {
    if (is_synchronising && engine_->network.is_training() && torch::GradMode::is_enabled()) {
        give_to_all(engine_->group, engine_->buffers);
    }
}

void GradientReducer::before_backward(const std::vector<torch::Tensor>& outputs) {
    if (!torch::GradMode::is_enabled()) {
        return;
    }
    if (is_synchronising) {
        engine_->reducer->prepare_for_backward(outputs);
    } else {
        *engine_->is_adding_up = true;
    }
}

}  // namespace ddprun::worker
