#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim.h>
#include <torch/types.h>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/nn/without_repeats.hpp"

namespace ddprun {

struct ShardedOptimizerOptions {
    /// Parameters are gathered in buckets of about this size.
    std::size_t bucket_bytes = std::size_t{25} << 20;
};

namespace worker {

/// The part of ShardedOptimizer that is the same for every kind of optimizer.
class ShardedOptimizerBase : public torch::optim::Optimizer {
public:
    /// This rank's elements of one parameter.
    struct Slice {
        std::int64_t first = 0;  ///< the index of the first one in the flat parameter
        torch::Tensor elements;  ///< [n], in the parameter's memory; n may be 0
    };

    /// The slice of a parameter in param_groups().
    [[nodiscard]] const Slice& slice_of(const torch::Tensor& parameter) const;
    /// This rank's own optimizer; it steps the slices, and has their state.
    [[nodiscard]] virtual torch::optim::Optimizer& local() = 0;

protected:
    ShardedOptimizerBase(const torch::nn::Module& network, ProcessGroup group,
                         const std::vector<torch::optim::OptimizerParamGroup>& groups,
                         std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                         const ShardedOptimizerOptions& options);

    /// The groups of this rank's own optimizer: their parameters are the slices.
    [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup> local_groups() const;
    /// Steps local() with the gradients and options of now, and gathers the parameters.
    torch::Tensor step_shards(const LossClosure& closure);

private:
    /// Parameters of one type, one after the other in the memory of `flat`. Rank r steps the part
    /// with number r of `world` equal ones.
    struct Bucket {
        torch::Tensor flat;
        torch::Tensor own;
    };

    /// Moves the parameters into a bucket.
    void add_bucket(const std::vector<torch::Tensor>& parameters);

    ProcessGroup group_;
    std::vector<Bucket> buckets_;
    std::unordered_map<const c10::TensorImpl*, Slice> slices_;  ///< by parameter
};

}  // namespace worker

/// ZeRO-1, Python's ZeroRedundancyOptimizer: `Kind`, one of torch::optim's Adam, AdamW, SGD,
/// RMSprop, Adagrad or a class derived from one, with its state shared out over the ranks. Each
/// rank steps its part of every bucket of parameters, and the ranks gather the parts. The
/// parameters are, bit for bit, those of an unsharded `Kind`.
///
///     ddprun::DistributedDataParallel model(network, group);
///     ddprun::ShardedOptimizer<torch::optim::AdamW> optimizer(
///         *network, group, torch::optim::AdamWOptions(1e-3));
///
/// The ranks start with the same parameters and have the same gradients, as under
/// DistributedDataParallel. The parameters' memory is laid out anew when it is built, so tensors
/// that shared it before no longer do. Its param_groups() have the whole parameters, so
/// zero_grad(), learning rates, clipping and GradientScaler work as ever. One thread; every rank
/// builds it and calls step() alike. Throws what LibTorch throws, also when a peer dies; then the
/// parameters hold anything.
template <typename Kind>
class ShardedOptimizer final : public worker::ShardedOptimizerBase {
    static_assert(std::is_base_of_v<torch::optim::Adam, Kind> ||
                      std::is_base_of_v<torch::optim::AdamW, Kind> ||
                      std::is_base_of_v<torch::optim::SGD, Kind> ||
                      std::is_base_of_v<torch::optim::RMSprop, Kind> ||
                      std::is_base_of_v<torch::optim::Adagrad, Kind>,
                  "a ShardedOptimizer steps parts of parameters, so its kind must treat each "
                  "element by itself: Adam, AdamW, SGD, RMSprop or Adagrad");

public:
    /// Steps all parameters of `network`.
    template <typename Options>
    ShardedOptimizer(const torch::nn::Module& network, ProcessGroup group, const Options& defaults,
                     const ShardedOptimizerOptions& options = {})
        : ShardedOptimizer(
              network, std::move(group),
              {torch::optim::OptimizerParamGroup(without_repeats(network.parameters()))}, defaults,
              options) {}

    /// Steps parameters of `network`, in groups with options of their own.
    template <typename Options>
    ShardedOptimizer(const torch::nn::Module& network, ProcessGroup group,
                     const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const Options& defaults, const ShardedOptimizerOptions& options = {})
        : ShardedOptimizerBase(network, std::move(group), groups,
                               std::make_unique<Options>(defaults), options),
          local_(local_groups(), defaults) {}

    torch::Tensor step(LossClosure closure = nullptr) override { return step_shards(closure); }

    [[nodiscard]] Kind& local() override { return local_; }

private:
    Kind local_;
};

}  // namespace ddprun
