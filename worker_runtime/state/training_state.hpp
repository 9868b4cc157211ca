#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/data/distributed_sampler.hpp"
#include "worker_runtime/state/state_tensors.hpp"
#include "worker_runtime/state/stored_state.hpp"

namespace ddprun {

/// A checkpoint's contents, by name: references to the things of a training, which outlive this.
/// The random state of every rank goes with it by itself. Two things under one name are a bug. One
/// thread.
///
/// docs/checkpoints.md lists the names that the file's tensors have.
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
    /// This rank's part of a tensor that the ranks have together: its first element is the one at
    /// `offsets` of the whole, whose shape is `global_shape`. The parts of all ranks are disjoint
    /// and together the whole; a save of others fails, and names the tensor and the ranks. A resume
    /// on another world size gives each rank what its own part there is. `mesh_dimension`: the name
    /// of the dimension of a Mesh along which the whole is sharded, the same on all ranks; the
    /// checkpoint has it for people, and a resume on another mesh is none the worse.
    void add_part(const std::string& name, torch::Tensor& tensor,
                  const std::vector<std::int64_t>& global_shape,
                  const std::vector<std::int64_t>& offsets, const std::string& mesh_dimension = {});
    /// A tensor whose meaning is its sum over the ranks, say a loss so far. After a resume rank 0
    /// holds the sum, the others zeros.
    void add_sum(const std::string& name, torch::Tensor& tensor);

    /// Tensors by name, and small values as UTF-8 text.
    struct Snapshot {
        std::map<std::string, torch::Tensor> tensors;
        std::map<std::string, std::string> values;
    };

    /// A section of its own, for state of another kind. `save` runs on every rank and may use
    /// collectives; the result of rank 0 is written. `load` runs on every rank, once the checkpoint
    /// has been found to fit on all ranks and all other state is put back. It gets tensors on the
    /// CPU, and an empty Snapshot if the checkpoint lacks the section. If it throws, the resume
    /// fails; the other state stays put back.
    void add(const std::string& name, std::function<Snapshot()> save,
             std::function<void(const Snapshot&)> load);

    /// Makes a Snapshot of this program's version from one of version `stored`.
    using Upgrade = std::function<Snapshot(std::int64_t stored, Snapshot snapshot)>;
    /// The same with a version, above 0, that is stored with the section; a section that was added
    /// without one has version 0. `load` gets what `upgrade` makes of a section of another version.
    /// Without `upgrade` such a checkpoint does not fit, and the error names the section.
    void add(const std::string& name, std::int64_t version, std::function<Snapshot()> save,
             std::function<void(const Snapshot&)> load, Upgrade upgrade = nullptr);

    /// All of it as it is now on this rank. Every rank calls it, for sections whose `save` uses
    /// collectives; there are no others.
    [[nodiscard]] Result<worker::CollectedState> collect(const ProcessGroup& group) const;

    /// The tensors that collect() will find once the optimizers have stepped, for names, types and
    /// sizes alone, without those of sections.
    [[nodiscard]] Result<worker::CollectedState> expected(const ProcessGroup& group) const;

    enum class Scope {
        Everything,
        Models,  ///< the networks' tensors alone; the rest of the checkpoint is not read
    };
    struct Comparison {
        Scope scope = Scope::Everything;
        /// False: state that the checkpoint lacks keeps its value, as does the optimizer's state of
        /// a parameter that it lacks, and stored state that this program lacks is ignored.
        bool is_strict = true;
        /// The name here of what the checkpoint calls `name`; nothing: the same.
        std::function<std::string(const std::string& name)> rename;
    };
    /// The result of a comparison with stored state.
    struct Fit {
        /// Puts the stored state back. Called at most once, while all arguments of compare() and
        /// this live.
        std::function<Result<void>()> put_back;
        std::vector<std::string>
            lines;  ///< a sentence for each name that is only stored, or only here
    };
    /// Compares `stored` with what is here. Nothing is changed: a tensor or value that is missing,
    /// unknown, or of another shape or type is an error that names it and both. Random state is put
    /// back as it was on the same world size; on another one each rank gets its own, derived from
    /// rank 0's.
    [[nodiscard]] Result<Fit> compare(const worker::StoredState& stored, const ProcessGroup& group,
                                      const Comparison& how);

private:
    using Commit = std::function<void()>;
    struct Value {
        std::function<std::string()> write;
        std::function<Result<Commit>(const std::string&)> read;
    };

    struct Part {
        std::function<Snapshot()> save;
        std::function<void(const Snapshot&)> load;
        std::int64_t version = 0;
        Upgrade upgrade;
    };

    class Plan;

    /// Ends the program if `name` cannot be that of a network, optimizer or part.
    void check_name(const std::string& name) const;
    void add_value(const std::string& name, Value value);
    template <typename Number>
    void add_number(const std::string& name, Number& value, const char* kind);
    /// The networks' parameters and buffers, by their full names.
    [[nodiscard]] worker::StateTensors model_tensors() const;
    /// The name of a network's parameter for its optimizer; the network's name comes first if there
    /// are several.
    [[nodiscard]] std::string parameter_name(const std::string& model,
                                             const std::string& key) const;
    /// collect() without sections and values; `is_expected`: as expected().
    [[nodiscard]] Result<worker::CollectedState> collect_tensors(const ProcessGroup& group,
                                                                 bool is_expected) const;
    /// The names of all networks' parameters.
    [[nodiscard]] std::map<const void*, std::string> parameter_names() const;
    /// The names of parameters that `stored` lacks.
    [[nodiscard]] std::set<std::string> parameters_without(
        const worker::StoredTensorsByName& stored) const;
    void plan_tensors(Plan& plan, const ProcessGroup& group);
    void plan_values(Plan& plan);
    void plan_parts(Plan& plan);

    std::map<std::string, std::shared_ptr<torch::nn::Module>> models_;
    std::map<std::string, torch::optim::Optimizer*> optimizers_;
    std::map<std::string, Part> parts_;
    std::map<std::string, torch::Tensor*> tensors_;
    struct Shard {
        torch::Tensor* tensor;
        worker::Layout layout;
    };
    std::map<std::string, Shard> shards_;
    std::map<std::string, torch::Tensor*> sums_;
    std::map<std::string, Value> values_;
};

}  // namespace ddprun
