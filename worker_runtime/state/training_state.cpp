#include "worker_runtime/state/training_state.hpp"

#include <ATen/Context.h>

#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

// Compiled in: what links us need not have the library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/state/optimizer_state.hpp"

namespace ddprun {

namespace {

using TensorMap = std::map<std::string, torch::Tensor>;

constexpr const char* kCpuRandom = "random.cpu";
constexpr const char* kGpuRandom = "random.cuda";

torch::Tensor random_state(torch::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
}

/// `states`: [world, n], by rank, of the world that saved.
void restore_random_state(torch::Device device, const torch::Tensor& states,
                          const ProcessGroup& group) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    if (states.size(0) == group.world_size()) {
        // A copy: the generator reads from the start of the storage, not of the view.
        generator.set_state(states[group.rank()].clone());
        return;
    }
    const torch::Tensor first = states[0].contiguous();
    generator.set_current_seed(XXH3_64bits_withSeed(first.const_data_ptr(), first.nbytes(),
                                                    static_cast<XXH64_hash_t>(group.rank())));
}

std::string shape_text(const torch::Tensor& tensor) {
    return fmt::format("{} {}", c10::str(tensor.scalar_type()), c10::str(tensor.sizes()));
}

/// The tensor `name` of a snapshot if it is like `wanted`.
Result<torch::Tensor> find_like(const TensorMap& tensors, const std::string& name,
                                const torch::Tensor& wanted) {
    const auto stored = tensors.find(name);
    if (stored == tensors.end()) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("{} ({}) is missing", name, shape_text(wanted))};
    }
    if (stored->second.sizes() != wanted.sizes() ||
        stored->second.scalar_type() != wanted.scalar_type()) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("{} is {}, this program's is {}", name, shape_text(stored->second),
                                 shape_text(wanted))};
    }
    return stored->second;
}

/// Checks each name once, and so finds a name that no part of the state has used.
template <typename Map>
Result<void> refuse_unknown(const Map& found, const std::set<std::string>& used) {
    for (const auto& [name, value] : found) {
        if (!used.contains(name)) {
            return Error{ErrorCode::BadMessage, fmt::format("{} is unknown to this program", name)};
        }
    }
    return {};
}

/// Adds what `save` gives to `snapshot`, with `name` before the names.
Result<void> save_part(const std::string& name,
                       const std::function<TrainingState::Snapshot()>& save,
                       TrainingState::Snapshot& snapshot) {
    try {
        const TrainingState::Snapshot part = save();
        for (const auto& [key, tensor] : part.tensors) {
            snapshot.tensors[name + "." + key] = tensor;
        }
        for (const auto& [key, value] : part.values) {
            snapshot.values[name + "." + key] = value;
        }
        return {};
    } catch (const std::exception& failure) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{} could not be saved: {}", name, worker::first_line(failure))};
    }
}

/// The entries of `all` that save_part() has named so, under their own names.
template <typename Map>
void take_part(const std::string& name, const Map& all, Map& part, std::set<std::string>& used) {
    const std::string prefix = name + ".";
    for (auto entry = all.lower_bound(prefix);
         entry != all.end() && entry->first.starts_with(prefix); ++entry) {
        part[entry->first.substr(prefix.size())] = entry->second;
        used.insert(entry->first);
    }
}

}  // namespace

TrainingState::TrainingState(std::shared_ptr<torch::nn::Module> model,
                             torch::optim::Optimizer& optimizer) {
    add_model("model", std::move(model));
    add_optimizer("optimizer", optimizer);
}

void TrainingState::check_name(const std::string& name) const {
    DDP_CHECK(!name.empty() && name.find('.') == std::string::npos && name != "random" &&
                  name != "extra" && !models_.contains(name) && !optimizers_.contains(name) &&
                  !parts_.contains(name),
              name);
}

void TrainingState::add_model(const std::string& name, std::shared_ptr<torch::nn::Module> model) {
    check_name(name);
    models_.emplace(name, std::move(model));
}

void TrainingState::add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer) {
    check_name(name);
    optimizers_.emplace(name, &optimizer);
}

void TrainingState::add(const std::string& name, std::function<Snapshot()> save,
                        std::function<void(const Snapshot&)> load) {
    check_name(name);
    const auto next = values_.lower_bound(name + ".");
    DDP_CHECK(next == values_.end() || !next->first.starts_with(name + "."), name, next->first);
    parts_.emplace(name, Part{std::move(save), std::move(load)});
}

void TrainingState::add_value(const std::string& name, Value value) {
    const std::size_t dot = name.find('.');
    DDP_CHECK(dot == std::string::npos || !parts_.contains(name.substr(0, dot)), name);
    DDP_CHECK(values_.emplace(name, std::move(value)).second, name);
}

void TrainingState::add(const std::string& name, torch::Tensor& tensor) {
    const std::string full_name = "extra." + name;
    DDP_CHECK(!sums_.contains(full_name) && tensors_.emplace(full_name, &tensor).second, full_name);
}

void TrainingState::add_sum(const std::string& name, torch::Tensor& tensor) {
    const std::string full_name = "extra." + name;
    DDP_CHECK(!tensors_.contains(full_name) && sums_.emplace(full_name, &tensor).second, full_name);
}

template <typename Number>
void TrainingState::add_number(const std::string& name, Number& value, const char* kind) {
    const auto read = [&value, kind](const std::string& text) -> Result<Commit> {
        const std::optional<Number> parsed = whole_number<Number>(text);
        if (!parsed) {
            return Error{ErrorCode::BadMessage, fmt::format("{} is no {}", text, kind)};
        }
        return Commit([&value, number = *parsed] { value = number; });
    };
    add_value(name, {[&value] { return fmt::format("{}", value); }, read});
}

void TrainingState::add(const std::string& name, std::int64_t& value) {
    add_number(name, value, "whole number");
}

void TrainingState::add(const std::string& name, double& value) {
    add_number(name, value, "number");
}

void TrainingState::add(const std::string& name, DistributedSampler& sampler) {
    const auto read = [&sampler](const std::string& text) -> Result<Commit> {
        const Result<SamplerPosition> position = SamplerPosition::parse(text);
        DistributedSampler moved = sampler;
        const Result<void> resumed = position ? moved.resume(*position) : position.error();
        if (!resumed) {
            return resumed.error();
        }
        return Commit([&sampler, moved] { sampler = moved; });
    };
    const auto write = [&sampler] { return sampler.position().text(); };
    add_value(name, {write, read});
}

TensorMap TrainingState::model_tensors() const {
    TensorMap tensors;
    for (const auto& [name, model] : models_) {
        for (const auto& parameter : model->named_parameters()) {
            tensors[fmt::format("{}.{}", name, parameter.key())] = parameter.value();
        }
        for (const auto& buffer : model->named_buffers()) {
            tensors[fmt::format("{}.{}", name, buffer.key())] = buffer.value();
        }
    }
    return tensors;
}

worker::ParameterNames TrainingState::parameter_names() const {
    worker::ParameterNames names;
    for (const auto& [name, model] : models_) {
        for (const auto& parameter : model->named_parameters()) {
            names.emplace(parameter.value().unsafeGetTensorImpl(),
                          models_.size() == 1 ? parameter.key()
                                              : fmt::format("{}.{}", name, parameter.key()));
        }
    }
    return names;
}

Result<TrainingState::Snapshot> TrainingState::take(ProcessGroup& group) const {
    Snapshot snapshot{.tensors = model_tensors(), .values = {}};
    for (const auto& [name, tensor] : tensors_) {
        snapshot.tensors[name] = *tensor;
    }
    const worker::ParameterNames names = parameter_names();
    for (const auto& [name, optimizer] : optimizers_) {
        if (const Result<void> collected =
                worker::collect_optimizer({name, *optimizer}, names, snapshot.tensors);
            !collected) {
            return collected.error();
        }
    }
    for (const auto& [name, tensor] : sums_) {
        torch::Tensor sum;
        // No memory for the copy is told as in a collective: the others wait in all_reduce.
        Result<void> reduced = group.collective(
            "copying " + name, [&sum, &copied = tensor]() -> c10::intrusive_ptr<c10d::Work> {
                sum = copied->detach().clone();
                return nullptr;
            });
        if (reduced) {
            reduced = group.all_reduce(sum);
        }
        if (!reduced) {
            return reduced.error();
        }
        snapshot.tensors[name] = sum;
    }
    std::vector<std::pair<const char*, torch::Device>> generators{{kCpuRandom, torch::kCPU}};
    if (group.device().is_cuda()) {
        generators.emplace_back(kGpuRandom, group.device());
    }
    for (const auto& [name, device] : generators) {
        Result<torch::Tensor> states = group.all_gather(random_state(device));
        if (!states) {
            return states.error();
        }
        snapshot.tensors[name] = std::move(*states);
    }
    for (const auto& [name, part] : parts_) {
        // After all collectives: a rank whose part fails leaves no rank waiting.
        if (const Result<void> saved = save_part(name, part.save, snapshot); !saved) {
            return saved.error();
        }
    }
    if (group.rank() != 0) {
        return Snapshot{};
    }
    for (auto& [name, tensor] : snapshot.tensors) {
        tensor = tensor.detach().to(torch::kCPU).contiguous();
    }
    // A GPU's results since a rank was lost may be anything.
    if (const Result<void> whole = group.check("saving the state"); !whole) {
        return whole.error();
    }
    for (const auto& [name, value] : values_) {
        snapshot.values[name] = value.write();
    }
    return snapshot;
}

/// The changes to make once everything has been compared; the first thing that does not fit.
class TrainingState::Plan {
public:
    explicit Plan(const TensorMap& tensors) : tensors_(tensors) {}

    std::vector<Commit> commits;
    std::set<std::string> used;         ///< names of tensors
    std::set<std::string> used_values;  ///< names of values
    Result<void> fits;

    void check(const Result<void>& part) { fits = fits ? part : fits; }

    /// `target` gets the values of the tensor `name`, or zeros if `is_zeroed`.
    void copy(const std::string& name, const torch::Tensor& target, bool is_zeroed) {
        const Result<torch::Tensor> stored = find_like(tensors_, name, target);
        if (!stored) {
            return check(stored.error());
        }
        used.insert(name);
        commits.emplace_back([target, source = *stored, is_zeroed] {
            is_zeroed ? target.zero_() : target.copy_(source);
        });
    }

    /// The random state of `device` if it was saved: a checkpoint of GPUs may go on on CPUs.
    void restore_random(const char* name, torch::Device device, const ProcessGroup& group) {
        const auto states = tensors_.find(name);
        if (states == tensors_.end()) {
            return;
        }
        used.insert(name);
        const torch::Tensor& stored = states->second;
        if (stored.dim() != 2 || stored.size(0) < 1 || stored.scalar_type() != torch::kUInt8) {
            return check(
                Error{ErrorCode::BadMessage,
                      fmt::format("{} is {}, no random states by rank", name, shape_text(stored))});
        }
        if (device.is_cpu() || group.device().is_cuda()) {
            commits.emplace_back(
                [stored, device, &group] { restore_random_state(device, stored, group); });
        }
    }

    Result<void> carry_out() const {
        try {
            torch::NoGradGuard no_grad;
            for (const Commit& commit : commits) {
                commit();
            }
            return {};
        } catch (const std::exception& failure) {
            return Error{ErrorCode::System, worker::first_line(failure)};
        }
    }

private:
    const TensorMap& tensors_;
};

void TrainingState::plan_tensors(Plan& plan, const Snapshot& snapshot, const ProcessGroup& group) {
    TensorMap targets = model_tensors();
    for (const auto& [name, tensor] : tensors_) {
        targets[name] = *tensor;
    }
    for (const auto& [name, target] : targets) {
        plan.copy(name, target, false);
    }
    for (const auto& [name, target] : sums_) {
        plan.copy(name, *target, group.rank() != 0);
    }
    const worker::ParameterNames names = parameter_names();
    for (const auto& [name, optimizer] : optimizers_) {
        plan.check(worker::plan_optimizer({name, *optimizer}, names, snapshot.tensors, plan.commits,
                                          plan.used));
    }
    plan.restore_random(kCpuRandom, torch::kCPU, group);
    plan.restore_random(kGpuRandom, torch::Device(torch::kCUDA, group.device().index()), group);
}

void TrainingState::plan_values(Plan& plan, const Snapshot& snapshot) {
    for (const auto& [name, value] : values_) {
        const auto stored = snapshot.values.find(name);
        if (stored == snapshot.values.end()) {
            return plan.check(
                Error{ErrorCode::BadMessage, fmt::format("value {} is missing", name)});
        }
        Result<Commit> commit = value.read(stored->second);
        if (!commit) {
            return plan.check(
                Error{commit.error().code, fmt::format("value {}: {}", name, commit.error().what)});
        }
        plan.used_values.insert(name);
        plan.commits.push_back(std::move(*commit));
    }
}

void TrainingState::plan_parts(Plan& plan, const Snapshot& snapshot) {
    for (const auto& [name, part] : parts_) {
        Snapshot stored;
        take_part(name, snapshot.tensors, stored.tensors, plan.used);
        take_part(name, snapshot.values, stored.values, plan.used_values);
        for (auto& [key, tensor] : stored.tensors) {
            tensor = tensor.clone();  // what is loaded may keep it; the checkpoint goes
        }
        plan.commits.emplace_back([&part_name = name, &load = part.load, stored] {
            try {
                load(stored);
            } catch (const std::exception& failure) {
                throw std::runtime_error(part_name + ": " + worker::first_line(failure));
            }
        });
    }
}

Result<TrainingState::PutBack> TrainingState::compare(const Snapshot& snapshot,
                                                      const ProcessGroup& group, Scope scope) {
    const auto plan = std::make_shared<Plan>(snapshot.tensors);
    if (scope == Scope::Models) {
        for (const auto& [name, target] : model_tensors()) {
            plan->copy(name, target, false);
        }
    } else {
        plan_tensors(*plan, snapshot, group);
        plan_values(*plan, snapshot);
        plan_parts(*plan, snapshot);
        plan->check(refuse_unknown(snapshot.tensors, plan->used));
        plan->check(refuse_unknown(snapshot.values, plan->used_values));
    }
    if (!plan->fits) {
        return plan->fits.error();
    }
    return PutBack([plan] { return plan->carry_out(); });
}

}  // namespace ddprun
