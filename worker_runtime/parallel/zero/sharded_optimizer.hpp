#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim.h>
#include <torch/types.h>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/comm/tensors_under_way.hpp"
#include "worker_runtime/nn/without_repeats.hpp"
#include "worker_runtime/parallel/zero/sharded_gradients.hpp"

namespace ddprun {

struct ShardedOptimizerOptions {
    /// Parameters are gathered in buckets of about this size.
    std::size_t bucket_bytes = std::size_t{25} << 20;
    /// Gradients are shared out, too (ZeRO-2): each backward pass averages them bucket by bucket,
    /// and a rank keeps its part. No DistributedDataParallel is around the network, whose
    /// parameters have no gradients after backward: shards() have them. Passes without step()
    /// between them add up. Each pass gives every parameter a gradient.
    bool shards_gradients = false;
    /// step() returns while the ranks gather the parameters, and the first operator of LibTorch
    /// that takes one of a bucket, on the thread of step(), waits for that bucket. Code that reads
    /// or writes parameters by address (data_ptr(), accessor(), torch::save()) or on another thread
    /// calls wait() first. If a gather fails, the parameters hold anything, and the error is that
    /// of the next wait(), step() or save.
    bool overlaps_gather = false;
    /// The name of the Mesh's dimension along which the group's ranks lie. Checkpoints have it as
    /// that of TrainingState::add_part().
    std::string mesh_dimension = {};
};

namespace worker {

/// The part of ShardedOptimizer that is the same for every kind of optimizer.
class ShardedOptimizerBase : public torch::optim::Optimizer {
public:
    /// This rank's elements of one parameter.
    struct Slice {
        std::int64_t first = 0;  ///< the index of the first one in the flat parameter
        torch::Tensor elements;  ///< [n], in the parameter's memory; n may be 0
        std::size_t bucket = 0;
    };

    /// The slice of a parameter in param_groups().
    [[nodiscard]] const Slice& slice_of(const torch::Tensor& parameter) const;
    /// This rank's own optimizer; it steps the slices, and has their state.
    [[nodiscard]] virtual torch::optim::Optimizer& local() = 0;
    /// As in the options.
    [[nodiscard]] const std::string& mesh_dimension() const { return mesh_dimension_; }

    /// This rank's elements of each parameter, [n], with their gradients, say for clip_grad_norm().
    /// With sharded gradients it waits for those of the last pass, and they are there until the
    /// next one.
    [[nodiscard]] std::vector<torch::Tensor> shards();

    /// Waits until the parameters of all ranks are there: see overlaps_gather.
    void wait();

    [[nodiscard]] bool shards_gradients() const { return gradients_.has_value(); }

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
    /// Moves the parameters into a bucket. Their names are unknown yet.
    void add_bucket(const std::vector<torch::Tensor>& parameters);
    /// Gives everyone rank 0's parameters.
    void give_to_all();
    /// Gathers the parameters of all ranks, or begins to.
    void gather();
    /// The gradient of this rank's elements; undefined without one.
    [[nodiscard]] torch::Tensor gradient_of(const torch::Tensor& parameter,
                                            const Slice& slice) const;

    ProcessGroup group_;
    bool overlaps_gather_;
    std::string mesh_dimension_;
    std::vector<ParameterBucket> buckets_;
    TensorsUnderWay gathers_;
    std::unordered_map<const c10::TensorImpl*, Slice> slices_;  ///< by parameter
    std::optional<ShardedGradients> gradients_;
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
/// It starts with rank 0's parameters everywhere. The ranks have the same gradients, as under
/// DistributedDataParallel, or shards_gradients has it average them. The parameters' memory is laid
/// out anew when it is built, so tensors that shared it before no longer do. Its param_groups()
/// have the whole parameters, so zero_grad(), learning rates, clipping and GradientScaler work as
/// ever, the last two without shards_gradients. One thread; every rank builds it and calls step()
/// alike. Throws what LibTorch throws, also when a peer dies; then the parameters hold anything.
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
