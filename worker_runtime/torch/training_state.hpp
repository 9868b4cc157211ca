#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/torch/distributed_sampler.hpp"
#include "worker_runtime/torch/process_group.hpp"

namespace ddprun {

/// What a checkpoint contains, by name: references to the things of a training, which outlive this.
/// The random state of every rank goes with it by itself. One thread.
///
/// Names in the file: `model.<parameter or buffer>`, `optimizer.<parameter>.<field>`, `random.cpu`,
/// and `extra.<name>` for what was added.
class TrainingState {
public:
    /// `optimizer` is one of LibTorch's Adam, AdamW, SGD, RMSprop, Adagrad over `model`'s
    /// parameters.
    TrainingState(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer);

    /// A tensor that is the same on every rank; keeps its shape and type.
    void add(const std::string& name, torch::Tensor& tensor);
    void add(const std::string& name, std::int64_t& value);
    void add(const std::string& name, double& value);
    /// Where the training is in its epoch.
    void add(const std::string& name, DistributedSampler& sampler);
    /// A tensor whose meaning is its sum over the ranks, say a loss so far. After a resume rank 0
    /// holds the sum, the others zeros.
    void add_sum(const std::string& name, torch::Tensor& tensor);

    /// All of it: tensors by name, on CPUs, contiguous, and small values as text.
    struct Snapshot {
        std::map<std::string, torch::Tensor> tensors;
        std::map<std::string, std::string> values;
    };
    /// As it is now. Every rank calls it; rank 0, which writes, gets everything, the others
    /// nothing.
    [[nodiscard]] Result<Snapshot> take(ProcessGroup& group) const;

    /// Compares `snapshot` with what is here and returns what puts it back, to be called once while
    /// both arguments and this live. Nothing is changed before: a tensor or value that is missing,
    /// unknown, or of another shape or type is an error that names it and both. Random state is put
    /// back as it was on the same world size; on another one each rank gets its own, derived from
    /// rank 0's.
    using PutBack = std::function<Result<void>()>;
    [[nodiscard]] Result<PutBack> compare(const Snapshot& snapshot, const ProcessGroup& group);

private:
    using Commit = std::function<void()>;
    struct Value {
        std::function<std::string()> write;
        std::function<Result<Commit>(const std::string&)> read;
    };

    class Plan;

    [[nodiscard]] std::map<std::string, torch::Tensor> model_tensors() const;
    [[nodiscard]] Result<std::map<std::string, torch::Tensor>> plain_tensors() const;
    [[nodiscard]] Result<void> plan_tensors(Plan& plan, const Snapshot& snapshot,
                                            const ProcessGroup& group);
    [[nodiscard]] Result<void> plan_values(Plan& plan, const Snapshot& snapshot);

    std::shared_ptr<torch::nn::Module> model_;
    torch::optim::Optimizer& optimizer_;
    std::map<std::string, torch::Tensor*> tensors_;
    std::map<std::string, torch::Tensor*> sums_;
    std::map<std::string, Value> values_;
};

}  // namespace ddprun
