#include "worker_runtime/parallel/zero/sharded_gradients.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "worker_runtime/comm/peer_watch.hpp"

namespace ddprun::worker {

namespace {

/// The beginning of `room`, some bytes, as a tensor like `like`. They are made anew unless they are
/// enough, and on its device.
torch::Tensor room_like(torch::Tensor& room, const torch::Tensor& like) {
    const auto bytes = static_cast<std::int64_t>(like.nbytes());
    if (!room.defined() || room.numel() < bytes || room.device() != like.device()) {
        room = torch::empty({bytes}, torch::dtype(torch::kUInt8).device(like.device()));
    }
    return room.narrow(0, 0, bytes).view(like.scalar_type());
}

/// Moves the gradients of a bucket's parameters to their places in `flat`; zeros where there is
/// none.
void fill(const torch::Tensor& flat, const ParameterBucket& parameters) {
    for (const ParameterBucket::Place& place : parameters.places) {
        const torch::Tensor& gradient = place.parameter.grad();
        TORCH_CHECK(!gradient.defined() || gradient.layout() == torch::kStrided,
                    "ShardedOptimizer: the sparse gradient of ", place.name, " cannot be divided");
    }
    std::int64_t end = 0;
    for (const ParameterBucket::Place& place : parameters.places) {
        torch::Tensor parameter = place.parameter;
        flat.narrow(0, end, place.offset - end).zero_();
        end = place.offset + parameter.numel();
        const torch::Tensor to = flat.narrow(0, place.offset, parameter.numel());
        const torch::Tensor& gradient = parameter.grad();
        if (!gradient.defined()) {
            to.zero_();
            continue;
        }
        to.view(gradient.sizes()).copy_(gradient);
        parameter.mutable_grad().reset();
    }
    flat.narrow(0, end, flat.numel() - end).zero_();
}

}  // namespace

/// Autograd calls it once a parameter's gradient is added up.
class ShardedGradients::Hook final : public torch::autograd::PostAccumulateGradHook {
public:
    Hook(ShardedGradients& gradients, std::size_t bucket, std::size_t place)
        : gradients_(gradients), bucket_(bucket), place_(place) {}
    void operator()(const torch::autograd::Variable& /*parameter*/) override {
        gradients_.take(gradients_.buckets_[bucket_], place_);
    }

private:
    ShardedGradients& gradients_;
    std::size_t bucket_;
    std::size_t place_;
};

ShardedGradients::ShardedGradients(ProcessGroup group, const std::vector<ParameterBucket>& buckets)
    : group_(std::move(group)), buckets_(buckets.size()) {
    for (const ParameterBucket& bucket : buckets) {
        for (const ParameterBucket::Place& place : bucket.places) {
            // DistributedDataParallel hooks the node that adds gradients up.
            TORCH_CHECK(
                !place.parameter.requires_grad() ||
                    (torch::autograd::impl::grad_accumulator(place.parameter)
                         ->post_hooks()
                         .empty() &&
                     torch::autograd::impl::post_acc_grad_hooks(place.parameter) == nullptr),
                "ShardedOptimizer: the gradient of ", place.name,
                " is averaged by another one, say DistributedDataParallel: sharded "
                "gradients need the network alone");
        }
    }
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        buckets_[i].parameters = &buckets[i];
        for (std::size_t place = 0; place < buckets[i].places.size(); ++place) {
            const torch::Tensor& parameter = buckets[i].places[place].parameter;
            if (parameter.requires_grad()) {
                torch::autograd::impl::set_post_acc_grad_hooks(
                    parameter, std::make_unique<Hook>(*this, i, place));
            }
        }
    }
    begin_pass();
}

ShardedGradients::~ShardedGradients() {
    for (const Bucket& bucket : buckets_) {
        for (const ParameterBucket::Place& place : bucket.parameters->places) {
            if (place.parameter.requires_grad()) {
                torch::autograd::impl::set_post_acc_grad_hooks(place.parameter, nullptr);
            }
        }
    }
}

void ShardedGradients::begin_pass() {
    has_begun_ = false;
    left_ = buckets_.size();
    for (Bucket& bucket : buckets_) {
        bucket.is_missing.clear();
        for (const ParameterBucket::Place& place : bucket.parameters->places) {
            bucket.is_missing.push_back(place.parameter.requires_grad());
        }
    }
}

void ShardedGradients::take(Bucket& bucket, std::size_t place) {
    const torch::NoGradGuard no_grad;
    has_begun_ = true;
    bucket.is_missing[place] = false;
    while (left_ > 0 && std::ranges::count(buckets_[left_ - 1].is_missing, true) == 0) {
        reduce(buckets_[--left_]);
    }
    if (left_ == 0) {
        begin_pass();
    }
}

void ShardedGradients::reduce(Bucket& bucket) {
    group_.loss()->check();
    if (under_way_.size() == kUnderWayMax) {
        collect(*under_way_.front());
        under_way_.pop_front();
    }
    collect(bucket);
    const ParameterBucket& parameters = *bucket.parameters;
    Room& room = rooms_[reductions_++ % kUnderWayMax];
    const torch::Tensor flat = room_like(room.flat, parameters.flat);
    fill(flat, parameters);
    if (!bucket.own.defined()) {
        bucket.own = torch::empty_like(parameters.own);
    }
    bucket.average = bucket.is_there ? room_like(room.average, parameters.own) : torch::Tensor();
    const torch::Tensor& result = bucket.is_there ? bucket.average : bucket.own;
    if (group_.world_size() == 1) {
        (void)torch::Tensor(result).copy_(flat);
        bucket.pending.emplace(Result<void>());
    } else {
        const torch::Tensor received =
            flat.is_cpu() ? room_like(room.received, flat) : torch::Tensor();
        bucket.pending.emplace(
            group_.reduce_scatter_into_async(result, flat, Reduction::Mean, received));
    }
    under_way_.push_back(&bucket);
}

void ShardedGradients::collect(Bucket& bucket) {
    if (!bucket.pending) {
        return;
    }
    const Result<void> done = bucket.pending->wait();
    bucket.pending.reset();
    TORCH_CHECK_WITH(DistBackendError, done.has_value(), done.error().what);
    if (bucket.average.defined()) {
        bucket.own.add_(std::exchange(bucket.average, torch::Tensor()));
    }
    bucket.is_there = true;
}

void ShardedGradients::finish() {
    group_.loss()->check();  // else a pass that a loss has ended lacks gradients
    std::vector<std::string> missing;
    for (std::size_t i = 0; has_begun_ && i < left_; ++i) {
        for (std::size_t place = 0; place < buckets_[i].is_missing.size(); ++place) {
            if (buckets_[i].is_missing[place]) {
                missing.push_back(buckets_[i].parameters->places[place].name);
            }
        }
    }
    TORCH_CHECK(missing.empty(), "ShardedOptimizer: the last backward pass gave no gradient for ",
                fmt::format("{}", fmt::join(missing, ", ")),
                ": sharded gradients need all of them in each pass");
    for (Bucket* const bucket : std::exchange(under_way_, {})) {
        collect(*bucket);
    }
}

void ShardedGradients::clear() {
    for (Bucket& bucket : buckets_) {
        bucket.is_there = false;
    }
}

}  // namespace ddprun::worker
