#include "worker_runtime/parallel/ddp/gradient_reducer.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/module.h>

#include "worker_runtime/comm/peer_watch.hpp"

namespace ddprun::worker {

namespace {

/// How much is sent at once when a network is given to all ranks; PyTorch's own figure.
constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

void give_to_all(const ProcessGroup& group, const std::vector<torch::Tensor>& tensors,
                 int giver = 0) {
    if (!tensors.empty() && group.world_size() > 1) {
        torch::NoGradGuard no_grad;
        c10d::broadcast_coalesced(group.c10d(), tensors, kBroadcastBytes, giver);
    }
}

/// Throws unless the group carries tensors where the network's parameters and buffers lie.
void check_devices(const ProcessGroup& group, const torch::nn::Module& network) {
    const auto check = [&group](const auto& tensors) {
        for (const auto& tensor : tensors) {
            const torch::Device device = tensor.value().device();
            TORCH_CHECK(device.is_cpu() || std::ranges::count(group.devices(), device) > 0,
                        "DistributedDataParallel: ", tensor.key(), " is on ", device, ", but rank ",
                        group.rank(), " of the group has ", c10::Join(", ", group.devices()),
                        "; move the network there, or join with "
                        "ProcessGroupOptions::gpus_per_rank if it spans several GPUs");
        }
    };
    check(network.named_parameters());
    check(network.named_buffers());
}

/// Compares the parameters' shapes with the other ranks'. The other ranks' shapes may be anything
/// once a rank is lost: then that loss is the error.
void compare_shapes(const ProcessGroup& group, const std::vector<torch::Tensor>& parameters) {
    try {
        c10d::verify_params_across_processes(group.c10d(), parameters, std::nullopt);
    } catch (const std::exception&) {
        group.loss()->check();
        throw;
    }
    group.loss()->check();
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
    const auto numbers_in = [&parameters](const std::vector<std::size_t>& bucket) {
        std::int64_t count = 0;
        for (const std::size_t index : bucket) {
            count += parameters[index].numel();
        }
        return count;
    };
    const auto found = std::ranges::min_element(buckets, {}, numbers_in);
    return static_cast<std::size_t>(found - buckets.begin());
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

    /// Takes part, with zeros, in what a backward pass of the other ranks sends.
    void shadow_backward() {
        std::vector<c10::intrusive_ptr<c10::ivalue::Future>> averages;
        for (c10d::GradBucket& bucket : get_grad_buckets(/*return_zero_tensors=*/true)) {
            averages.push_back(run_comm_hook(bucket));
        }
        for (const auto& average : averages) {
            average->waitAndThrow();
        }
        if (find_unused_parameters_) {
            std::vector<torch::Tensor> used{torch::zeros_like(local_used_map_dev_)};
            process_group_->allreduce(used)->wait();
        }
    }
};

/// The values that change from pass to pass.
struct Pass {
    /// A no_sync() pass has been since the last one that averages.
    bool is_adding_up = false;
    int divisor = 1;
};

struct HookState {
    ProcessGroup group;
    std::size_t carrier = 0;  ///< index of the bucket that the stop word travels with
    GradientCompression compression = GradientCompression::None;
    std::shared_ptr<Pass> pass;  ///< the engine's
};

/// `bucket` as what it travels as; itself if that is what it is.
torch::Tensor compressed(const torch::Tensor& bucket, GradientCompression compression) {
    switch (compression) {
        case GradientCompression::None:
            break;
        case GradientCompression::Float16:
            return bucket.to(torch::kFloat16);
        case GradientCompression::BFloat16:
            return bucket.to(torch::kBFloat16);
    }
    return bucket;
}

/// Averages a bucket over all ranks. On CPUs, where a collective's latency is that of a whole step
/// of a small network, one bucket carries the ranks' stop words along.
class AveragingHook final : public c10d::CppCommHookInterface<HookState> {
public:
    explicit AveragingHook(HookState state) : CppCommHookInterface(std::move(state)) {}

    c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
        state_.pass->is_adding_up = false;
        state_.group.loss()->check();
        if (bucket.isLast()) {
            // An optimizer's step follows.
            state_.group.background_saves().before_step();
        }
        const torch::Tensor& buffer = bucket.getBufferRef();
        if (state_.group.world_size() == 1) {
            auto done = c10::make_intrusive<c10::ivalue::Future>(
                c10::TensorType::get(), buffer.is_cpu()
                                            ? std::vector<torch::Device>()
                                            : std::vector<torch::Device>{buffer.device()});
            done->markCompleted(buffer);
            return done;
        }
        const torch::Tensor sent = compressed(buffer, state_.compression);
        auto average = average_over_all(sent, bucket.getIndex() == state_.carrier);
        if (!average->completed()) {
            // An engine that is aborted may say that it is done.
            average = state_.group.loss()->unless_lost(average);
        }
        if (sent.is_cpu() && bucket.isLast()) {
            // This rank has nothing left to compute: from here on it waits for the others.
            average->addCallback([begun = std::chrono::steady_clock::now(),
                                  waited = state_.group.waited_ns()](c10::ivalue::Future&) {
                waited->fetch_add(
                    std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun).count());
            });
        }
        if (sent.is_same(buffer)) {
            return average;
        }
        const auto decompress = [buffer](c10::ivalue::Future& done) {
            buffer.copy_(done.value().toTensorVector().front());
            return c10::IValue(buffer);
        };
        return average->then(decompress, c10::TensorType::get());
    }

private:
    c10::intrusive_ptr<c10::ivalue::Future> average_over_all(const torch::Tensor& sent,
                                                             bool is_carrier) {
        const c10::intrusive_ptr<c10d::ProcessGroup>& group = state_.group.c10d();
        std::vector<torch::Tensor> tensors{sent};
        c10d::AllreduceOptions options;
        if (state_.pass->divisor == state_.group.world_size() &&
            state_.group.has_mean(sent.device())) {
            options.reduceOp = c10d::ReduceOp::AVG;
        } else {
            tensors.front().div_(state_.pass->divisor);
        }
        if (!sent.is_cpu() || !is_carrier) {
            return group->allreduce(tensors, options)->getFuture();
        }
        StopBallot& ballot = state_.group.stop_ballot();
        ballot.word =
            torch::full({1}, ballot.is_stop_wanted() ? 1 : 0, sent.options().requires_grad(false));
        tensors.push_back(ballot.word);
        return group->allreduce_coalesced(tensors)->getFuture();
    }
};

}  // namespace

struct GradientReducer::Engine {
    ProcessGroup group;
    torch::nn::Module& network;
    std::vector<torch::Tensor> buffers;  ///< empty: not to be broadcast
    std::vector<torch::Tensor> parameters;
    std::unique_ptr<FixedReducer> reducer;
    std::shared_ptr<Pass> pass = std::make_shared<Pass>();
    std::optional<JoinOptions> join;
    int last_active = 0;  ///< the highest of the ranks that had inputs when any had

    /// Nothing is held once the gradients are cleared, whatever has been added up before.
    [[nodiscard]] bool holds_gradients() const {
        return pass->is_adding_up && std::any_of(parameters.begin(), parameters.end(),
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
    check_devices(engine_->group, network);
    compare_shapes(engine_->group, parameters);
    std::vector<torch::Tensor> all = network.parameters();
    const std::vector<torch::Tensor> buffers = network.buffers();
    all.insert(all.end(), buffers.begin(), buffers.end());
    give_to_all(engine_->group, all);
    const Result<void> given = engine_->group.check_after("giving all ranks the network of rank 0");
    TORCH_CHECK_WITH(DistBackendError, given.has_value(), given.error().what);
    if (options.broadcast_buffers) {
        engine_->buffers = buffers;
    }
    const std::vector<bool> is_sparse(parameters.size(), false);
    // Autograd refuses detach_() on a view that it knows of, and torch::optim's zero_grad() calls
    // it on every gradient.
    const at::AutoDispatchBelowADInplaceOrView without_views;
    const std::vector<std::vector<std::size_t>> buckets = lay_out(parameters, options);
    engine_->parameters = parameters;
    engine_->pass->divisor = engine_->group.world_size();
    engine_->reducer = std::make_unique<FixedReducer>(
        parameters, buckets, engine_->group.c10d(), is_sparse,
        static_cast<std::int64_t>(options.bucket_bytes), options.find_unused_parameters,
        /*gradient_as_bucket_view=*/true, std::move(names),
        static_cast<std::int64_t>(options.first_bucket_bytes),
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<std::int64_t>{});
    engine_->reducer->register_comm_hook(
        std::make_unique<AveragingHook>(HookState{.group = engine_->group,
                                                  .carrier = lightest(buckets, parameters),
                                                  .compression = options.compression,
                                                  .pass = engine_->pass}));
    (*engine_->group.stop_ballot().is_adding_up)[this] = [engine = engine_.get()] {
        return engine->holds_gradients();
    };
}

GradientReducer::~GradientReducer() {
    engine_->group.stop_ballot().is_adding_up->erase(this);
}

void GradientReducer::before_forward() {
    engine_->group.loss()->check();
    const bool is_reducing = is_synchronising && torch::GradMode::is_enabled();
    const bool is_giving =
        is_reducing && engine_->network.is_training() && !engine_->buffers.empty();
    const int giver =
        engine_->join ? meet(/*is_active=*/true, is_giving, is_reducing).last_active : 0;
    if (is_giving) {
        give_to_all(engine_->group, engine_->buffers, giver);
    }
}

GradientReducer::Round GradientReducer::meet(bool is_active, bool is_giving, bool is_reducing) {
    StopBallot& ballot = engine_->group.stop_ballot();
    const Result<torch::Tensor> words = engine_->group.all_gather(
        torch::tensor({is_active, is_giving, is_reducing, ballot.is_stop_wanted()}, torch::kInt64));
    TORCH_CHECK_WITH(DistBackendError, words.has_value(), words.error().what);
    const torch::Tensor any = words->amax(0);
    const torch::Tensor active = words->select(1, 0).nonzero();
    const int world_size = engine_->group.world_size();
    const Round round{.active = static_cast<int>(active.size(0)),
                      .last_active = active.numel() > 0 ? active.max().item<int>() : 0,
                      .is_giving = any[1].item<bool>(),
                      .is_reducing = any[2].item<bool>()};
    if (round.active > 0) {
        engine_->last_active = round.last_active;
        // Ranks that have run out ask for no stop by themselves: the word comes with the others'.
        ballot.word = any.narrow(0, 3, 1);
    }
    TORCH_CHECK(!engine_->join->throw_on_early_termination || round.active == 0 ||
                    round.active == world_size,
                is_active ? "another rank has" : "this rank has", " run out of inputs: rank ",
                engine_->group.rank(), " of ", world_size, ", ", round.active, " still train");
    if (!engine_->join->divide_by_initial_world_size && round.active > 0) {
        engine_->pass->divisor = round.active;
    }
    return round;
}

void GradientReducer::begin_join(const JoinOptions& options) {
    engine_->join = options;
    engine_->last_active = 0;
    engine_->group.background_saves().have_ranks_joined = true;
}

void GradientReducer::end_join() {
    engine_->join.reset();
    engine_->pass->divisor = engine_->group.world_size();
}

void GradientReducer::shadow_others() {
    for (;;) {
        const Round round = meet(/*is_active=*/false, /*is_giving=*/false, /*is_reducing=*/false);
        if (round.active == 0) {
            break;
        }
        if (round.is_giving) {
            give_to_all(engine_->group, engine_->buffers, round.last_active);
        }
        if (round.is_reducing) {
            engine_->reducer->shadow_backward();
        }
    }
    std::vector<torch::Tensor> all = engine_->network.parameters();
    const std::vector<torch::Tensor> buffers = engine_->network.buffers();
    all.insert(all.end(), buffers.begin(), buffers.end());
    give_to_all(engine_->group, all, engine_->last_active);
}

void GradientReducer::before_backward(const std::vector<torch::Tensor>& outputs) {
    if (!torch::GradMode::is_enabled()) {
        return;
    }
    if (is_synchronising) {
        engine_->reducer->prepare_for_backward(outputs);
    } else {
        engine_->pass->is_adding_up = true;
    }
}

}  // namespace ddprun::worker
