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

/// Buckets whose sums are under way at once: one travels while the next one is filled.
constexpr std::size_t kUnderWayMax = 2;

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
    bucket.flat = torch::zeros_like(bucket.parameters->flat);
    for (const ParameterBucket::Place& place : bucket.parameters->places) {
        torch::Tensor parameter = place.parameter;
        if (const torch::Tensor& gradient = parameter.grad(); gradient.defined()) {
            TORCH_CHECK(gradient.layout() == torch::kStrided,
                        "ShardedOptimizer: the sparse gradient of ", place.name,
                        " cannot be divided");
            bucket.flat.narrow(0, place.offset, parameter.numel()).copy_(gradient.flatten());
            parameter.mutable_grad().reset();
        }
    }
    if (group_.world_size() == 1) {
        bucket.incoming = bucket.flat;
        bucket.pending.emplace(Result<void>());
    } else {
        bucket.incoming = torch::empty_like(bucket.parameters->own);
        bucket.pending.emplace(
            group_.reduce_scatter_into_async(bucket.incoming, bucket.flat, Reduction::Mean));
    }
    under_way_.push_back(&bucket);
}

void ShardedGradients::collect(Bucket& bucket) {
    if (!bucket.pending) {
        return;
    }
    const Result<void> done = bucket.pending->wait();
    bucket.pending.reset();
    bucket.flat.reset();
    TORCH_CHECK_WITH(DistBackendError, done.has_value(), done.error().what);
    const torch::Tensor incoming = std::exchange(bucket.incoming, torch::Tensor());
    if (bucket.own.defined()) {
        bucket.own.add_(incoming);
    } else {
        bucket.own = incoming;
    }
}

void ShardedGradients::finish() {
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
        bucket.own.reset();
    }
}

}  // namespace ddprun::worker
