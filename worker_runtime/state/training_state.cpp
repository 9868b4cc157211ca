#include "worker_runtime/state/training_state.hpp"

#include <ATen/Context.h>

#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

// Compiled in: what links us need not have the library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/comm/tensors_under_way.hpp"
#include "worker_runtime/state/optimizer_state.hpp"

namespace ddprun {

namespace {

constexpr const char* kCpuRandom = "random.cpu";
constexpr const char* kSectionVersion = "section_version";  // among a section's values

/// The state of the rank's GPU of this number, among those that it has.
std::string gpu_random_name(std::size_t number) {
    return number == 0 ? "random.cuda" : fmt::format("random.cuda.{}", number);
}

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

std::string shape_text(torch::ScalarType type, torch::IntArrayRef shape) {
    return fmt::format("{} {}", c10::str(type), c10::str(shape));
}

/// Adds what `save` gives to `state`, with `name` before the names, and the version unless it is 0.
Result<void> save_part(const std::string& name,
                       const std::function<TrainingState::Snapshot()>& save, std::int64_t version,
                       worker::CollectedState& state) {
    try {
        TrainingState::Snapshot part = save();
        if (version > 0 &&
            !part.values.emplace(kSectionVersion, fmt::format("{}", version)).second) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{} could not be saved: its value {} has the name that the "
                                     "section's version is stored under; name it otherwise",
                                     name, kSectionVersion)};
        }
        for (const auto& [key, tensor] : part.tensors) {
            state.of_rank_0[name + "." + key] = {.tensor = tensor};
        }
        for (const auto& [key, value] : part.values) {
            state.values[name + "." + key] = value;
        }
        return {};
    } catch (const std::exception& failure) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{} could not be saved: {}", name, worker::first_line(failure))};
    }
}

/// Takes the version out of a section's values: 0 if it was saved without one, `own` if the
/// checkpoint lacks the section.
Result<std::int64_t> take_version(const std::string& name, std::int64_t own,
                                  TrainingState::Snapshot& stored) {
    const auto found = stored.values.find(kSectionVersion);
    if (found == stored.values.end()) {
        return stored.values.empty() && stored.tensors.empty() ? own : 0;
    }
    const std::optional<std::int64_t> version = whole_number<std::int64_t>(found->second);
    if (!version) {
        return Error{
            ErrorCode::BadMessage,
            fmt::format("the version of section {} is {}, no whole number", name, found->second)};
    }
    stored.values.erase(found);
    return *version;
}

/// Calls use(name there, value) for the entries of `all` that save_part() has named so.
template <typename Map, typename Use>
void for_each_of_part(const std::string& name, const Map& all, std::set<std::string>& used,
                      const Use& use) {
    const std::string prefix = name + ".";
    for (auto entry = all.lower_bound(prefix);
         entry != all.end() && entry->first.starts_with(prefix); ++entry) {
        use(entry->first.substr(prefix.size()), entry->second);
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
    parts_.emplace(name, Part{std::move(save), std::move(load), /*version=*/0, nullptr});
}

void TrainingState::add(const std::string& name, std::int64_t version,
                        std::function<Snapshot()> save, std::function<void(const Snapshot&)> load,
                        Upgrade upgrade) {
    DDP_CHECK(version > 0, name, version);
    add(name, std::move(save), std::move(load));
    parts_.at(name).version = version;
    parts_.at(name).upgrade = std::move(upgrade);
}

void TrainingState::add_value(const std::string& name, Value value) {
    const std::size_t dot = name.find('.');
    DDP_CHECK(dot == std::string::npos || !parts_.contains(name.substr(0, dot)), name);
    DDP_CHECK(values_.emplace(name, std::move(value)).second, name);
}

void TrainingState::add(const std::string& name, torch::Tensor& tensor) {
    const std::string full_name = "extra." + name;
    DDP_CHECK(!sums_.contains(full_name) && !shards_.contains(full_name) &&
                  tensors_.emplace(full_name, &tensor).second,
              full_name);
}

void TrainingState::add_part(const std::string& name, torch::Tensor& tensor,
                             const std::vector<std::int64_t>& global_shape,
                             const std::vector<std::int64_t>& offsets,
                             const std::string& mesh_dimension) {
    const std::string full_name = "extra." + name;
    const worker::Layout layout{
        .global_shape = global_shape, .offsets = offsets, .mesh_dimension = mesh_dimension};
    const Result<void> within =
        worker::check_layout(layout, {tensor.sizes().begin(), tensor.sizes().end()});
    DDP_CHECK(within.has_value(), full_name);
    DDP_CHECK(!tensors_.contains(full_name) && !sums_.contains(full_name) &&
                  shards_.emplace(full_name, Shard{&tensor, layout}).second,
              full_name);
}

void TrainingState::add_sum(const std::string& name, torch::Tensor& tensor) {
    const std::string full_name = "extra." + name;
    DDP_CHECK(!tensors_.contains(full_name) && !shards_.contains(full_name) &&
                  sums_.emplace(full_name, &tensor).second,
              full_name);
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

worker::StateTensors TrainingState::model_tensors() const {
    worker::StateTensors tensors;
    for (const auto& [name, model] : models_) {
        for (const auto& parameter : model->named_parameters()) {
            tensors[fmt::format("{}.{}", name, parameter.key())] = {
                .tensor = parameter.value().detach(), .changes_in_steps_only = true};
        }
        for (const auto& buffer : model->named_buffers()) {
            tensors[fmt::format("{}.{}", name, buffer.key())] = {.tensor = buffer.value()};
        }
    }
    return tensors;
}

std::string TrainingState::parameter_name(const std::string& model, const std::string& key) const {
    return models_.size() == 1 ? key : fmt::format("{}.{}", model, key);
}

worker::ParameterNames TrainingState::parameter_names() const {
    worker::ParameterNames names;
    for (const auto& [name, model] : models_) {
        for (const auto& parameter : model->named_parameters()) {
            names.emplace(parameter.value().unsafeGetTensorImpl(),
                          parameter_name(name, parameter.key()));
        }
    }
    return names;
}

std::set<std::string> TrainingState::parameters_without(
    const worker::StoredTensorsByName& stored) const {
    std::set<std::string> names;
    for (const auto& [name, model] : models_) {
        for (const auto& parameter : model->named_parameters()) {
            if (!stored.contains(fmt::format("{}.{}", name, parameter.key()))) {
                names.insert(parameter_name(name, parameter.key()));
            }
        }
    }
    return names;
}

Result<worker::CollectedState> TrainingState::collect_tensors(const ProcessGroup& group,
                                                              bool is_expected) const {
    // Another thread may copy them.
    if (const Result<void> whole = worker::TensorsUnderWay::wait_for_all(); !whole) {
        return whole.error();
    }
    worker::CollectedState state{.models = model_tensors()};
    if (models_.size() == 1) {
        state.models_prefix = models_.begin()->first + ".";
    }
    for (const auto& [name, tensor] : tensors_) {
        state.others[name] = {.tensor = *tensor};
    }
    for (const auto& [name, shard] : shards_) {
        state.others[name] = {.tensor = *shard.tensor, .layout = shard.layout};
    }
    const worker::ParameterNames names = parameter_names();
    for (const auto& [name, optimizer] : optimizers_) {
        if (const Result<void> collected =
                worker::collect_optimizer({name, *optimizer}, names, state.others);
            !collected) {
            return collected.error();
        }
        if (is_expected) {
            worker::expect_optimizer({name, *optimizer}, names, state.others);
        }
    }
    for (const auto& [name, tensor] : sums_) {
        state.sums[name] = {.tensor = tensor->detach()};
    }
    state.rows[kCpuRandom] = {.tensor = random_state(torch::kCPU)};
    for (std::size_t i = 0; group.device().is_cuda() && i < group.devices().size(); ++i) {
        state.rows[gpu_random_name(i)] = {.tensor = random_state(group.devices()[i])};
    }
    return state;
}

Result<worker::CollectedState> TrainingState::expected(const ProcessGroup& group) const {
    return collect_tensors(group, /*is_expected=*/true);
}

Result<worker::CollectedState> TrainingState::collect(const ProcessGroup& group) const {
    Result<worker::CollectedState> state = collect_tensors(group, /*is_expected=*/false);
    if (!state) {
        return state;
    }
    for (const auto& [name, part] : parts_) {
        if (const Result<void> saved = save_part(name, part.save, part.version, *state); !saved) {
            return saved.error();
        }
    }
    for (const auto& [name, value] : values_) {
        state->values[name] = value.write();
    }
    if (group.rank() != 0) {
        state->of_rank_0.clear();
        state->values.clear();
    }
    return state;
}

/// The changes to make once everything has been compared; the first thing that does not fit.
class TrainingState::Plan {
public:
    Plan(const worker::StoredState& stored, const Comparison& how) : how_(how) {
        for (const auto& [name, tensor] : stored.tensors) {
            tensors_[name_here(name)] = &tensor;
        }
        for (const auto& [name, value] : stored.values) {
            values_[name_here(name)] = &value;
        }
    }

    std::vector<Commit> commits;
    std::set<std::string> used;         ///< names of tensors
    std::set<std::string> used_values;  ///< names of values
    std::vector<std::string> lines;
    Result<void> fits;

    [[nodiscard]] const worker::StoredTensorsByName& tensors() const { return tensors_; }
    [[nodiscard]] const std::map<std::string, const std::string*>& values() const {
        return values_;
    }

    void check(const Result<void>& part) { fits = fits ? part : fits; }

    void missing(const std::string& what) {
        if (how_.is_strict) {
            return check(Error{ErrorCode::BadMessage, what + " is missing"});
        }
        lines.push_back(what + " is not in the checkpoint, and stays as it is");
    }

    /// `target` gets the values of the tensor `name`, or its part of them, or zeros.
    void copy(const std::string& name, const worker::StateTensor& target, bool is_zeroed = false) {
        const auto found = tensors_.find(name);
        const torch::Tensor& tensor = target.tensor;
        const std::vector<std::int64_t> shape =
            target.layout ? target.layout->global_shape : tensor.sizes().vec();
        if (found == tensors_.end()) {
            return missing(fmt::format("{} ({})", name, shape_text(tensor.scalar_type(), shape)));
        }
        const worker::StoredState::Tensor& stored = *found->second;
        if (stored.shape != shape || stored.type != tensor.scalar_type()) {
            const std::string dimension =
                target.layout ? target.layout->mesh_dimension : std::string();
            return check(Error{ErrorCode::BadMessage,
                               fmt::format("{} is {}{}, this program's is {}{}", name,
                                           shape_text(stored.type, stored.shape),
                                           worker::sharded_text(stored.mesh_dimension),
                                           shape_text(tensor.scalar_type(), shape),
                                           worker::sharded_text(dimension))});
        }
        used.insert(name);
        const std::vector<std::int64_t> offsets =
            target.layout ? target.layout->offsets : std::vector<std::int64_t>(shape.size(), 0);
        commits.emplace_back([tensor, &stored, offsets, is_zeroed] {
            is_zeroed ? static_cast<void>(tensor.zero_()) : stored.copy_into(tensor, offsets);
        });
    }

    /// The random state of `device` if it was saved: a checkpoint of GPUs may go on on CPUs, which
    /// have no `device` for it.
    void restore_random(const std::string& name, std::optional<torch::Device> device,
                        const ProcessGroup& group) {
        const auto found = tensors_.find(name);
        if (found == tensors_.end()) {
            return;
        }
        used.insert(name);
        const worker::StoredState::Tensor& stored = *found->second;
        if (stored.shape.size() != 2 || stored.shape[0] < 1 || stored.type != torch::kUInt8) {
            return check(
                Error{ErrorCode::BadMessage, fmt::format("{} is {}, no random states by rank", name,
                                                         shape_text(stored.type, stored.shape))});
        }
        if (device) {
            const std::int64_t bytes = random_state(*device).numel();
            if (stored.shape[1] != bytes) {
                return check(
                    Error{ErrorCode::BadMessage,
                          fmt::format("{} is {}, states of this program have {} bytes", name,
                                      shape_text(stored.type, stored.shape), bytes)});
            }
            commits.emplace_back([&stored, at = *device, &group] {
                restore_random_state(at, stored.whole(), group);
            });
        }
    }

    /// Finds names that no part of the state has used.
    template <typename Map>
    void check_unknown(const Map& found, const std::set<std::string>& known) {
        for (const auto& [name, value] : found) {
            if (known.contains(name)) {
                continue;
            }
            if (how_.is_strict) {
                return check(Error{ErrorCode::BadMessage, name + " is unknown to this program"});
            }
            lines.push_back(name + " of the checkpoint is unknown to this program, and left out");
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
    [[nodiscard]] std::string name_here(const std::string& name) const {
        return how_.rename ? how_.rename(name) : name;
    }

    const Comparison& how_;
    worker::StoredTensorsByName tensors_;
    std::map<std::string, const std::string*> values_;
};

void TrainingState::plan_tensors(Plan& plan, const ProcessGroup& group) {
    worker::StateTensors targets = model_tensors();
    for (const auto& [name, tensor] : tensors_) {
        targets[name] = {.tensor = *tensor};
    }
    for (const auto& [name, shard] : shards_) {
        targets[name] = {.tensor = *shard.tensor, .layout = shard.layout};
    }
    for (const auto& [name, target] : targets) {
        plan.copy(name, target);
    }
    for (const auto& [name, target] : sums_) {
        plan.copy(name, {.tensor = *target}, /*is_zeroed=*/group.rank() != 0);
    }
    const worker::ParameterNames names = parameter_names();
    const std::set<std::string> without = parameters_without(plan.tensors());
    for (const auto& [name, optimizer] : optimizers_) {
        const auto first = plan.tensors().lower_bound(name + ".");
        if (first == plan.tensors().end() || !first->first.starts_with(name + ".")) {
            plan.missing("optimizer " + name);
            continue;
        }
        plan.check(worker::plan_optimizer({name, *optimizer}, names, plan.tensors(), without,
                                          plan.commits, plan.used));
    }
    plan.restore_random(kCpuRandom, torch::kCPU, group);
    for (std::size_t i = 0; plan.tensors().contains(gpu_random_name(i)); ++i) {
        const bool is_here = group.device().is_cuda() && i < group.devices().size();
        plan.restore_random(gpu_random_name(i),
                            is_here ? std::optional(group.devices()[i]) : std::nullopt, group);
    }
}

void TrainingState::plan_values(Plan& plan) {
    for (const auto& [name, value] : values_) {
        const auto stored = plan.values().find(name);
        if (stored == plan.values().end()) {
            plan.missing("value " + name);
            continue;
        }
        Result<Commit> commit = value.read(*stored->second);
        if (!commit) {
            return plan.check(
                Error{commit.error().code, fmt::format("value {}: {}", name, commit.error().what)});
        }
        plan.used_values.insert(name);
        plan.commits.push_back(std::move(*commit));
    }
}

void TrainingState::plan_parts(Plan& plan) {
    for (const auto& [name, part] : parts_) {
        Snapshot stored;
        // Copies: what is loaded may keep them; the checkpoint goes.
        for_each_of_part(name, plan.tensors(), plan.used,
                         [&](const std::string& key, const worker::StoredState::Tensor* tensor) {
                             stored.tensors[key] = tensor->whole();
                         });
        for_each_of_part(
            name, plan.values(), plan.used_values,
            [&](const std::string& key, const std::string* value) { stored.values[key] = *value; });
        const Result<std::int64_t> version = take_version(name, part.version, stored);
        const bool is_other = version && *version != part.version;
        if (!version || (is_other && !part.upgrade)) {
            return plan.check(
                version ? Error{ErrorCode::BadMessage,
                                fmt::format("section {} is of version {}, this program's is {}; "
                                            "add it with an upgrade from that version",
                                            name, *version, part.version)}
                        : version.error());
        }
        plan.commits.emplace_back(
            [&part_name = name, &part = part, stored, is_other, from = *version] {
                try {
                    part.load(is_other ? part.upgrade(from, stored) : stored);
                } catch (const std::exception& failure) {
                    throw std::runtime_error(part_name + ": " + worker::first_line(failure));
                }
            });
    }
}

Result<TrainingState::Fit> TrainingState::compare(const worker::StoredState& stored,
                                                  const ProcessGroup& group,
                                                  const Comparison& how) {
    const auto plan = std::make_shared<Plan>(stored, how);
    if (how.scope == Scope::Models) {
        for (const auto& [name, target] : model_tensors()) {
            plan->copy(name, target);
        }
    } else {
        plan_tensors(*plan, group);
        plan_values(*plan);
        plan_parts(*plan);
        plan->check_unknown(plan->tensors(), plan->used);
        plan->check_unknown(plan->values(), plan->used_values);
    }
    if (!plan->fits) {
        return plan->fits.error();
    }
    return Fit{.put_back = [plan] { return plan->carry_out(); }, .lines = plan->lines};
}

}  // namespace ddprun
