#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/data/distributed_sampler.hpp"

namespace ddprun {

/// A checkpoint's contents, by name: references to the things of a training, which outlive this.
/// The random state of every rank goes with it by itself. Two things under one name are a bug. One
/// thread.
///
/// worker_runtime/README.md lists the names that the file's tensors have.
class TrainingState {
public:
    TrainingState() = default;
    /// One network and its optimizer, by the names `model` and `optimizer`.
    TrainingState(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer);

    /// Names of networks, optimizers and parts are the first word of their tensors' names: not
    /// empty, without a dot, and neither `random` nor `extra`.
    void add_model(const std::string& name, std::shared_ptr<torch::nn::Module> model);
    /// One of LibTorch's Adam, AdamW, SGD, RMSprop, Adagrad over parameters of the networks here,
    /// of any number of them.
    void add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer);

    /// A tensor that is the same on every rank; keeps its shape and type.
    void add(const std::string& name, torch::Tensor& tensor);
    void add(const std::string& name, std::int64_t& value);
    void add(const std::string& name, double& value);
    /// The position of the training in its epoch.
    void add(const std::string& name, DistributedSampler& sampler);
    /// A tensor whose meaning is its sum over the ranks, say a loss so far. After a resume rank 0
    /// holds the sum, the others zeros.
    void add_sum(const std::string& name, torch::Tensor& tensor);

    /// Tensors by name, and small values as UTF-8 text.
    struct Snapshot {
        std::map<std::string, torch::Tensor> tensors;
        std::map<std::string, std::string> values;
    };

    /// A part of its own, for state of another kind. `save` is called on every rank, which may
    /// agree there; what rank 0's returns is written. `load` is called on every rank, once all that
    /// the checkpoint holds fits everywhere and is put back, with tensors on the CPU; nothing at
    /// all if the checkpoint has no such part. It throws if it cannot use that: the resume then
    /// fails, with the rest put back.
    void add(const std::string& name, std::function<Snapshot()> save,
             std::function<void(const Snapshot&)> load);

    /// All of it as it is now, on the CPU, contiguous. Every rank calls it; rank 0, which writes,
    /// gets everything, the others nothing.
    [[nodiscard]] Result<Snapshot> take(ProcessGroup& group) const;

    enum class Scope {
        Everything,
        Models,  ///< the networks' tensors alone; the rest of the snapshot is not read
    };
    /// Compares `snapshot` with what is here and returns what puts it back, to be called once while
    /// both arguments and this live. Nothing is changed before: a tensor or value that is missing,
    /// unknown, or of another shape or type is an error that names it and both. Random state is put
    /// back as it was on the same world size; on another one each rank gets its own, derived from
    /// rank 0's.
    using PutBack = std::function<Result<void>()>;
    [[nodiscard]] Result<PutBack> compare(const Snapshot& snapshot, const ProcessGroup& group,
                                          Scope scope);

private:
    using Commit = std::function<void()>;
    struct Value {
        std::function<std::string()> write;
        std::function<Result<Commit>(const std::string&)> read;
    };

    struct Part {
        std::function<Snapshot()> save;
        std::function<void(const Snapshot&)> load;
    };

    class Plan;

    /// Ends the program if `name` cannot be that of a network, optimizer or part.
    void check_name(const std::string& name) const;
    void add_value(const std::string& name, Value value);
    template <typename Number>
    void add_number(const std::string& name, Number& value, const char* kind);
    [[nodiscard]] std::map<std::string, torch::Tensor> model_tensors() const;
    /// The names of all networks' parameters; the network's name comes first if there are several.
    [[nodiscard]] std::map<const void*, std::string> parameter_names() const;
    void plan_tensors(Plan& plan, const Snapshot& snapshot, const ProcessGroup& group);
    void plan_values(Plan& plan, const Snapshot& snapshot);
    void plan_parts(Plan& plan, const Snapshot& snapshot);

    std::map<std::string, std::shared_ptr<torch::nn::Module>> models_;
    std::map<std::string, torch::optim::Optimizer*> optimizers_;
    std::map<std::string, Part> parts_;
    std::map<std::string, torch::Tensor*> tensors_;
    std::map<std::string, torch::Tensor*> sums_;
    std::map<std::string, Value> values_;
};

}  // namespace ddprun
