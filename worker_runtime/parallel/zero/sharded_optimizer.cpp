#include "worker_runtime/parallel/zero/sharded_optimizer.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include <c10/util/hash.h>
#include <fmt/format.h>

#include "worker_runtime/comm/background_saves.hpp"
#include "worker_runtime/comm/votes.hpp"

namespace ddprun::worker {

namespace {

using torch::optim::OptimizerParamGroup;

/// Parameters and parts begin at multiples of so many elements. Kernels compute many elements at
/// once, and round the rest of a tensor otherwise: a slice must have no rest but its parameter's.
constexpr std::int64_t kAlignedElements = 64;

std::int64_t aligned(std::int64_t elements) {
    return (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

std::unordered_map<const void*, std::string> names_in(const torch::nn::Module& network) {
    std::unordered_map<const void*, std::string> names;
    for (const auto& parameter : network.named_parameters()) {
        names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
    }
    return names;
}

/// A line that is the same on two ranks if they have the same parameters in the same groups, as far
/// as can be told from names, shapes and types.
Result<std::string> described(const torch::nn::Module& network,
                              const std::vector<OptimizerParamGroup>& groups) {
    const auto refused = [](const std::string& why) {
        return Error{ErrorCode::InvalidArgument, "ShardedOptimizer: " + why};
    };
    const std::unordered_map<const void*, std::string> names = names_in(network);
    std::unordered_set<const void*> seen;
    std::int64_t elements = 0;
    std::size_t hash = 0;
    for (std::size_t group = 0; group < groups.size(); ++group) {
        for (const torch::Tensor& parameter : groups[group].params()) {
            const auto name = names.find(parameter.unsafeGetTensorImpl());
            if (name == names.end()) {
                return refused(
                    fmt::format("group {} has a tensor of shape {} that is no parameter of the "
                                "network",
                                group, c10::str(parameter.sizes())));
            }
            if (!seen.insert(name->first).second) {
                return refused(fmt::format("parameter {} is there twice", name->second));
            }
            if (!parameter.is_floating_point() || !parameter.is_contiguous()) {
                return refused(
                    fmt::format("parameter {}, {} with shape {} and strides {}, cannot be divided: "
                                "its elements must be floating-point numbers, contiguous in memory",
                                name->second, c10::toString(parameter.scalar_type()),
                                c10::str(parameter.sizes()), c10::str(parameter.strides())));
            }
            elements += parameter.numel();
            hash = c10::hash_combine(hash,
                                     c10::get_hash(group, name->second, c10::str(parameter.sizes()),
                                                   static_cast<int>(parameter.scalar_type())));
        }
    }
    if (seen.empty()) {
        return refused("there is no parameter");
    }
    return fmt::format(
        "{} parameters with {} elements in {} groups (names, shapes and types: {:x})", seen.size(),
        elements, groups.size(), hash);
}

/// Fails on all ranks if one of them cannot do it, or has other parameters.
void agree_on_parameters(ProcessGroup& group, const Result<std::string>& own) {
    const Result<std::vector<std::string>> all = gather_results(group, own);
    TORCH_CHECK(all.has_value(), all.error().what);
    for (std::size_t rank = 1; rank < all->size(); ++rank) {
        TORCH_CHECK((*all)[rank] == all->front(),
                    "ShardedOptimizer: the ranks have different parameters: rank 0 ", all->front(),
                    ", rank ", rank, " ", (*all)[rank]);
    }
}

/// Throws the error of a collective.
void require(const Result<void>& done) {
    TORCH_CHECK_WITH(DistBackendError, done.has_value(), done.error().what);
}

}  // namespace

ShardedOptimizerBase::ShardedOptimizerBase(const torch::nn::Module& network, ProcessGroup group,
                                           const std::vector<OptimizerParamGroup>& groups,
                                           std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                           const ShardedOptimizerOptions& options)
    : Optimizer(groups, std::move(defaults)),
      group_(std::move(group)),
      overlaps_gather_(options.overlaps_gather),
      mesh_dimension_(options.mesh_dimension) {
    agree_on_parameters(group_, described(network, param_groups()));
    const torch::NoGradGuard no_grad;
    struct Waiting {
        std::vector<torch::Tensor> parameters;
        std::size_t bytes = 0;
    };
    std::map<std::pair<std::string, torch::ScalarType>, Waiting> waiting;  // by device and type
    for (const OptimizerParamGroup& one : param_groups()) {
        for (const torch::Tensor& parameter : one.params()) {
            Waiting& next = waiting[{parameter.device().str(), parameter.scalar_type()}];
            next.parameters.push_back(parameter);
            next.bytes += parameter.nbytes();
            if (next.bytes >= options.bucket_bytes) {
                add_bucket(std::exchange(next, {}).parameters);
            }
        }
    }
    for (const auto& [key, rest] : waiting) {
        if (!rest.parameters.empty()) {
            add_bucket(rest.parameters);
        }
    }
    give_to_all();
    if (options.shards_gradients) {
        const std::unordered_map<const void*, std::string> names = names_in(network);
        for (ParameterBucket& bucket : buckets_) {
            for (ParameterBucket::Place& place : bucket.places) {
                place.name = names.at(place.parameter.unsafeGetTensorImpl());
            }
        }
        gradients_.emplace(group_, buckets_);
    }
}

void ShardedOptimizerBase::add_bucket(const std::vector<torch::Tensor>& parameters) {
    std::int64_t elements = 0;
    for (const torch::Tensor& parameter : parameters) {
        elements += aligned(parameter.numel());
    }
    const std::int64_t world = group_.world_size();
    const std::int64_t part = aligned((elements + world - 1) / world);
    const std::int64_t begin = group_.rank() * part;
    ParameterBucket bucket;
    bucket.flat = torch::zeros({world * part}, parameters.front().options().requires_grad(false));
    bucket.own = bucket.flat.narrow(0, begin, part);
    std::int64_t offset = 0;
    for (torch::Tensor parameter : parameters) {
        const std::int64_t numel = parameter.numel();
        const torch::Tensor place = bucket.flat.narrow(0, offset, numel);
        place.copy_(parameter.flatten());
        parameter.set_data(place.view(parameter.sizes()));
        const std::int64_t first = std::clamp<std::int64_t>(begin - offset, 0, numel);
        const std::int64_t last = std::clamp<std::int64_t>(begin + part - offset, 0, numel);
        slices_.emplace(parameter.unsafeGetTensorImpl(),
                        Slice{.first = first,
                              .elements = place.narrow(0, first, last - first),
                              .bucket = buckets_.size()});
        bucket.places.push_back({.name = "", .parameter = parameter, .offset = offset});
        offset += aligned(numel);
    }
    buckets_.push_back(std::move(bucket));
}

void ShardedOptimizerBase::give_to_all() {
    if (group_.world_size() == 1) {
        return;
    }
    std::vector<Pending<void>> given;
    for (const ParameterBucket& bucket : buckets_) {
        given.push_back(group_.broadcast_async(bucket.flat));
    }
    Result<void> done = all_of(std::move(given)).wait();
    if (done) {
        done = group_.check_after("giving all ranks the parameters of rank 0");
    }
    require(done);
}

torch::Tensor ShardedOptimizerBase::gradient_of(const torch::Tensor& parameter,
                                                const Slice& slice) const {
    const std::int64_t count = slice.elements.numel();
    if (gradients_) {
        const torch::Tensor& own = gradients_->own(slice.bucket);
        if (!own.defined() || !parameter.requires_grad()) {
            return {};
        }
        const std::int64_t begin = count == 0 ? 0
                                              : slice.elements.storage_offset() -
                                                    buckets_[slice.bucket].own.storage_offset();
        return own.narrow(0, begin, count);
    }
    const torch::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
        return {};
    }
    TORCH_CHECK(gradient.layout() == torch::kStrided,
                "ShardedOptimizer: a sparse gradient of a parameter of shape ", parameter.sizes(),
                " cannot be divided");
    return gradient.flatten().narrow(0, slice.first, count);
}

std::vector<torch::Tensor> ShardedOptimizerBase::shards() {
    const torch::NoGradGuard no_grad;
    if (gradients_) {
        gradients_->finish();
    }
    std::vector<torch::Tensor> shards;
    for (const OptimizerParamGroup& group : param_groups()) {
        for (const torch::Tensor& parameter : group.params()) {
            const Slice& slice = slice_of(parameter);
            shards.push_back(slice.elements);
            shards.back().mutable_grad() = gradient_of(parameter, slice);
        }
    }
    return shards;
}

const ShardedOptimizerBase::Slice& ShardedOptimizerBase::slice_of(
    const torch::Tensor& parameter) const {
    const auto found = slices_.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK(found != slices_.end(), "ShardedOptimizer: a parameter of shape ",
                parameter.sizes(), " was added after the optimizer was built");
    return found->second;
}

std::vector<OptimizerParamGroup> ShardedOptimizerBase::local_groups() const {
    std::vector<OptimizerParamGroup> groups;
    for (const OptimizerParamGroup& group : param_groups()) {
        std::vector<torch::Tensor> elements;
        for (const torch::Tensor& parameter : group.params()) {
            elements.push_back(slice_of(parameter).elements);
        }
        groups.emplace_back(std::move(elements), group.options().clone());
    }
    return groups;
}

void ShardedOptimizerBase::gather() {
    std::vector<Pending<void>> gathers;
    for (const ParameterBucket& bucket : buckets_) {
        Pending<void> begun = group_.all_gather_into_async(bucket.flat, bucket.own);
        if (overlaps_gather_) {
            gathers_.add(bucket.flat, std::move(begun));
        } else {
            gathers.push_back(std::move(begun));
        }
    }
    require(all_of(std::move(gathers)).wait());
}

void ShardedOptimizerBase::wait() {
    require(gathers_.wait());
}

torch::Tensor ShardedOptimizerBase::step_shards(const LossClosure& closure) {
    torch::Tensor loss;
    if (closure) {
        const torch::AutoGradMode with_gradients(true);
        loss = closure();
    }
    const torch::NoGradGuard no_grad;
    wait();  // of parameters that nothing has used since the last step
    (void)shards();
    for (std::size_t i = 0; i < param_groups().size(); ++i) {
        local().param_groups()[i].set_options(param_groups()[i].options().clone());
    }
    group_.background_saves().before_step();
    local().step();
    for (auto& [parameter, slice] : slices_) {
        slice.elements.mutable_grad().reset();
    }
    if (gradients_) {
        gradients_->clear();
    }
    if (group_.world_size() > 1) {
        gather();
    }
    return loss;
}

}  // namespace ddprun::worker
