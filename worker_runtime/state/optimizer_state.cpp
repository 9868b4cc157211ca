#include "worker_runtime/state/optimizer_state.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

#include <fmt/format.h>
#include <torch/optim.h>

#include "worker_runtime/parallel/zero/sharded_optimizer.hpp"

namespace ddprun::worker {

namespace {

using torch::optim::AdagradParamState;
using torch::optim::AdamParamState;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;
using torch::optim::RMSpropParamState;
using torch::optim::SGDParamState;

/// Shows `visit` every field of one parameter's state: a name and a reference to an int64 or
/// tensor.
template <typename State, typename Visit>
void for_each_field(State& state, Visit visit) {
    if constexpr (std::is_same_v<State, AdamParamState> || std::is_same_v<State, AdamWParamState>) {
        visit("step", state.step());
        visit("exp_avg", state.exp_avg());
        visit("exp_avg_sq", state.exp_avg_sq());
        visit("max_exp_avg_sq", state.max_exp_avg_sq());
    } else if constexpr (std::is_same_v<State, SGDParamState>) {
        visit("momentum_buffer", state.momentum_buffer());
    } else if constexpr (std::is_same_v<State, RMSpropParamState>) {
        visit("step", state.step());
        visit("square_avg", state.square_avg());
        visit("momentum_buffer", state.momentum_buffer());
        visit("grad_avg", state.grad_avg());
    } else {
        static_assert(std::is_same_v<State, AdagradParamState>);
        visit("step", state.step());
        visit("sum", state.sum());
    }
}

/// The optimizer that has the state on this rank.
Optimizer& local(Optimizer& optimizer) {
    auto* const sharded = dynamic_cast<ShardedOptimizerBase*>(&optimizer);
    return sharded == nullptr ? optimizer : sharded->local();
}

/// Calls `use` with a null pointer of the state type of the optimizer.
template <typename Use>
Result<void> with_state_type(const NamedOptimizer& named, Use use) {
    Optimizer& optimizer = local(named.optimizer);
    if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
        return use(static_cast<AdamParamState*>(nullptr));
    }
    if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
        return use(static_cast<AdamWParamState*>(nullptr));
    }
    if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) {
        return use(static_cast<SGDParamState*>(nullptr));
    }
    if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) {
        return use(static_cast<RMSpropParamState*>(nullptr));
    }
    if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) {
        return use(static_cast<AdagradParamState*>(nullptr));
    }
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("{} is of a kind that cannot be checkpointed; use Adam, AdamW, SGD, "
                             "RMSprop or Adagrad, or add its tensors to the TrainingState by name",
                             named.name)};
}

struct NamedParameter {
    std::string name;
    torch::Tensor whole;
    torch::Tensor stepped;         ///< by this rank: `whole`, or a part of it, flat
    std::optional<Layout> layout;  ///< of the part

    /// The key of its state.
    [[nodiscard]] void* key() const { return stepped.unsafeGetTensorImpl(); }
};

NamedParameter parameter_of(const Optimizer& optimizer, const std::string& name,
                            const torch::Tensor& whole) {
    const auto* const sharded = dynamic_cast<const ShardedOptimizerBase*>(&optimizer);
    if (sharded == nullptr) {
        return {.name = name, .whole = whole, .stepped = whole, .layout = std::nullopt};
    }
    const ShardedOptimizerBase::Slice& slice = sharded->slice_of(whole);
    return {.name = name,
            .whole = whole,
            .stepped = slice.elements,
            .layout = Layout{.global_shape = {whole.numel()},
                             .offsets = {slice.first},
                             .mesh_dimension = sharded->mesh_dimension()}};
}

/// The parameters of all groups.
Result<std::vector<NamedParameter>> parameters_of(const NamedOptimizer& named,
                                                  const ParameterNames& names) {
    std::vector<NamedParameter> found;
    for (const auto& group : named.optimizer.param_groups()) {
        for (const torch::Tensor& tensor : group.params()) {
            const auto name = names.find(tensor.unsafeGetTensorImpl());
            if (name == names.end()) {
                return Error{ErrorCode::InvalidArgument,
                             fmt::format("{} trains a tensor of shape {} that is no parameter of "
                                         "a network in the TrainingState; add the network",
                                         named.name, c10::str(tensor.sizes()))};
            }
            found.push_back(parameter_of(named.optimizer, name->second, tensor));
        }
    }
    return found;
}

std::string learning_rate_name(const NamedOptimizer& named, std::size_t group) {
    return fmt::format("{}.lr.{}", named.name, group);
}

std::string field_name(const NamedOptimizer& named, const NamedParameter& parameter,
                       const char* field) {
    return fmt::format("{}.{}.{}", named.name, parameter.name, field);
}

/// Copies the elements of a flat tensor from `first` on, as many as `target` has. `stored` may have
/// them in another shape.
void copy_elements(const StoredState::Tensor& stored, std::int64_t first, torch::Tensor target) {
    const std::int64_t count = target.numel();
    if (count == 0) {
        return;
    }
    if (stored.shape.size() == 1) {
        stored.copy_into(target, {first});
        return;
    }
    // The rows that have them; a tensor without dimensions is one row.
    std::vector<std::int64_t> rows = stored.shape;
    const std::int64_t in_row = rows.empty() ? 1 : c10::multiply_integers(rows) / rows.front();
    std::vector<std::int64_t> offsets(rows.size(), 0);
    if (!rows.empty()) {
        offsets.front() = first / in_row;
        rows.front() = (first + count + in_row - 1) / in_row - offsets.front();
    }
    const torch::Tensor around = torch::empty(rows, stored.type);
    stored.copy_into(around, offsets);
    target.copy_(around.flatten().narrow(0, first % in_row, count));
}

/// A copy of what the file holds for one field; an error text if it does not fit `parameter`.
template <typename Field>
std::optional<std::string> read_field(const StoredState::Tensor& stored,
                                      const NamedParameter& parameter, Field& field) {
    if constexpr (std::is_same_v<Field, std::int64_t>) {
        if (!stored.shape.empty() || stored.type != torch::kInt64) {
            return fmt::format("is {} {}, one int64 is wanted", c10::str(stored.type),
                               c10::str(stored.shape));
        }
        field = stored.whole().item<std::int64_t>();
    } else {
        const torch::IntArrayRef wanted = parameter.whole.sizes();
        const std::vector<std::int64_t> flat{parameter.whole.numel()};
        if (wanted != stored.shape && flat != stored.shape) {
            return fmt::format("has shape {}, its parameter has {}", c10::str(stored.shape),
                               c10::str(wanted));
        }
        const torch::NoGradGuard no_grad;
        const torch::Tensor& stepped = parameter.stepped;
        field = torch::empty_like(stepped, stepped.options().dtype(stored.type));
        if (parameter.layout) {
            copy_elements(stored, parameter.layout->offsets.front(), field);
        } else if (wanted == stored.shape) {
            stored.copy_into(field, std::vector<std::int64_t>(stored.shape.size(), 0));
        } else {
            field.copy_(stored.whole().view(wanted));
        }
    }
    return std::nullopt;
}

template <typename State>
Result<void> plan_parameter(const NamedOptimizer& named, const NamedParameter& parameter,
                            const StoredTensorsByName& tensors,
                            std::vector<std::function<void()>>& commits,
                            std::set<std::string>& used) {
    auto state = std::make_shared<State>();
    bool is_known = false;
    std::optional<Error> error;
    for_each_field(*state, [&](const char* which, auto& field) {
        const std::string name = field_name(named, parameter, which);
        const auto stored = tensors.find(name);
        if (stored == tensors.end()) {
            return;
        }
        is_known = true;
        used.insert(name);
        const std::optional<std::string> flaw = read_field(*stored->second, parameter, field);
        if (flaw && !error) {
            error = Error{ErrorCode::BadMessage, name + " " + *flaw};
        }
    });
    if (error) {
        return *error;
    }
    commits.emplace_back(
        [&optimizer = local(named.optimizer), key = parameter.key(), state, is_known] {
            if (is_known) {
                optimizer.state()[key] = std::make_unique<State>(*state);
            } else {
                optimizer.state().erase(key);
            }
        });
    return {};
}

/// `field` as state of `parameter`.
StateTensor state_of(const NamedParameter& parameter, const torch::Tensor& field) {
    return {.tensor = field, .changes_in_steps_only = true, .layout = parameter.layout};
}

/// The fields, of a parameter's shape, that the first step makes under the options of a group. The
/// kinds that have no option for it make them all.
std::vector<const char*> fields_of_first_step(const torch::optim::OptimizerOptions& options) {
    std::vector<const char*> fields;
    const auto add_if = [&](bool is_made, const char* field) {
        if (is_made) {
            fields.push_back(field);
        }
    };
    const auto add_adam = [&](bool has_max) {
        fields = {"exp_avg", "exp_avg_sq"};
        add_if(has_max, "max_exp_avg_sq");
    };
    if (const auto* const adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
        add_adam(adam->amsgrad());
    } else if (const auto* const adamw =
                   dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
        add_adam(adamw->amsgrad());
    } else if (const auto* const sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
        add_if(sgd->momentum() != 0, "momentum_buffer");
    } else if (const auto* const rms =
                   dynamic_cast<const torch::optim::RMSpropOptions*>(&options)) {
        fields = {"square_avg"};
        add_if(rms->momentum() > 0, "momentum_buffer");
        add_if(rms->centered(), "grad_avg");
    }
    return fields;
}

}  // namespace

void expect_optimizer(const NamedOptimizer& named, const ParameterNames& names,
                      StateTensors& tensors) {
    for (const auto& group : named.optimizer.param_groups()) {
        for (const torch::Tensor& tensor : group.params()) {
            const auto name = names.find(tensor.unsafeGetTensorImpl());
            if (name == names.end() || !tensor.requires_grad()) {
                continue;
            }
            const NamedParameter parameter = parameter_of(named.optimizer, name->second, tensor);
            for (const char* const field : fields_of_first_step(group.options())) {
                tensors.emplace(field_name(named, parameter, field),
                                state_of(parameter, parameter.stepped.detach()));
            }
        }
    }
}

Result<void> collect_optimizer(const NamedOptimizer& named, const ParameterNames& names,
                               StateTensors& tensors) {
    Result<std::vector<NamedParameter>> parameters = parameters_of(named, names);
    if (!parameters) {
        return parameters.error();
    }
    Optimizer& optimizer = named.optimizer;
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
        tensors[learning_rate_name(named, i)] = {
            .tensor = torch::scalar_tensor(optimizer.param_groups()[i].options().get_lr(),
                                           torch::kFloat64),
            .changes_in_steps_only = true};
    }
    const auto& states = local(optimizer).state();
    return with_state_type(named, [&](auto* type) -> Result<void> {
        using State = std::remove_pointer_t<decltype(type)>;
        for (const NamedParameter& parameter : *parameters) {
            const auto entry = states.find(parameter.key());
            if (entry == states.end()) {
                continue;
            }
            for_each_field(
                static_cast<State&>(*entry->second), [&](const char* which, auto& field) {
                    const std::string full_name = field_name(named, parameter, which);
                    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::int64_t>) {
                        tensors[full_name] = {.tensor = torch::scalar_tensor(field, torch::kInt64),
                                              .changes_in_steps_only = true};
                    } else if (field.defined()) {
                        tensors[full_name] = state_of(parameter, field);
                    }
                });
        }
        return {};
    });
}

Result<void> plan_optimizer(const NamedOptimizer& named, const ParameterNames& names,
                            const StoredTensorsByName& tensors,
                            const std::set<std::string>& without,
                            std::vector<std::function<void()>>& commits,
                            std::set<std::string>& used) {
    Result<std::vector<NamedParameter>> parameters = parameters_of(named, names);
    if (!parameters) {
        return parameters.error();
    }
    Optimizer& optimizer = named.optimizer;
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
        const std::string name = learning_rate_name(named, i);
        const auto stored = tensors.find(name);
        if (stored == tensors.end() || !stored->second->shape.empty() ||
            stored->second->type != torch::kFloat64) {
            return Error{ErrorCode::BadMessage,
                         fmt::format("{} is missing or no float64 scalar; {} has {} parameter "
                                     "groups",
                                     name, named.name, optimizer.param_groups().size())};
        }
        used.insert(name);
        commits.emplace_back([&optimizer, i, rate = stored->second->whole().item<double>()] {
            optimizer.param_groups()[i].options().set_lr(rate);
        });
    }
    return with_state_type(named, [&](auto* type) -> Result<void> {
        using State = std::remove_pointer_t<decltype(type)>;
        for (const NamedParameter& parameter : *parameters) {
            if (without.contains(parameter.name)) {
                continue;
            }
            const Result<void> planned =
                plan_parameter<State>(named, parameter, tensors, commits, used);
            if (!planned) {
                return planned;
            }
        }
        return {};
    });
}

}  // namespace ddprun::worker
