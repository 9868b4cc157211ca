#include "worker_runtime/torch/optimizer_state.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <torch/optim.h>

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

/// Calls `use` with a null pointer of the state type of `optimizer`.
template <typename Use>
Result<void> with_state_type(Optimizer& optimizer, Use use) {
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
                 "this kind of optimizer cannot be checkpointed; use Adam, AdamW, SGD, RMSprop or "
                 "Adagrad, or add its tensors to the TrainingState by name"};
}

struct NamedParameter {
    std::string name;
    torch::Tensor tensor;
};

/// The parameters of all groups, by the names the model gives them.
Result<std::vector<NamedParameter>> parameters_of(Optimizer& optimizer,
                                                  const torch::nn::Module& model) {
    std::map<void*, std::string> names;
    for (const auto& parameter : model.named_parameters()) {
        names[parameter.value().unsafeGetTensorImpl()] = parameter.key();
    }
    std::vector<NamedParameter> found;
    for (const auto& group : optimizer.param_groups()) {
        for (const torch::Tensor& tensor : group.params()) {
            const auto name = names.find(tensor.unsafeGetTensorImpl());
            if (name == names.end()) {
                return Error{ErrorCode::InvalidArgument,
                             fmt::format("the optimizer trains a tensor of shape {} that is no "
                                         "parameter of the model; give TrainingState the model "
                                         "that holds all",
                                         c10::str(tensor.sizes()))};
            }
            found.push_back({name->second, tensor});
        }
    }
    return found;
}

std::string learning_rate_name(std::size_t group) {
    return fmt::format("optimizer.lr.{}", group);
}

/// A copy of what the file holds for one field; an error text if it does not fit `parameter`.
template <typename Field>
std::optional<std::string> read_field(const torch::Tensor& stored, const torch::Tensor& parameter,
                                      Field& field) {
    if constexpr (std::is_same_v<Field, std::int64_t>) {
        if (stored.dim() != 0 || stored.scalar_type() != torch::kInt64) {
            return fmt::format("is {} {}, one int64 is wanted", c10::str(stored.scalar_type()),
                               c10::str(stored.sizes()));
        }
        field = stored.item<std::int64_t>();
    } else {
        if (stored.sizes() != parameter.sizes()) {
            return fmt::format("has shape {}, its parameter has {}", c10::str(stored.sizes()),
                               c10::str(parameter.sizes()));
        }
        field = torch::empty_like(parameter, parameter.options().dtype(stored.scalar_type()));
        field.copy_(stored);
    }
    return std::nullopt;
}

template <typename State>
Result<void> plan_parameter(Optimizer& optimizer, const NamedParameter& parameter,
                            const std::map<std::string, torch::Tensor>& tensors,
                            std::vector<std::function<void()>>& commits,
                            std::set<std::string>& used) {
    auto state = std::make_shared<State>();
    bool is_known = false;
    std::optional<Error> error;
    for_each_field(*state, [&](const char* field_name, auto& field) {
        const std::string name = fmt::format("optimizer.{}.{}", parameter.name, field_name);
        const auto stored = tensors.find(name);
        if (stored == tensors.end()) {
            return;
        }
        is_known = true;
        used.insert(name);
        const std::optional<std::string> flaw = read_field(stored->second, parameter.tensor, field);
        if (flaw && !error) {
            error = Error{ErrorCode::BadMessage, name + " " + *flaw};
        }
    });
    if (error) {
        return *error;
    }
    void* const key = parameter.tensor.unsafeGetTensorImpl();
    commits.emplace_back([&optimizer, key, state, is_known] {
        if (is_known) {
            optimizer.state()[key] = std::make_unique<State>(*state);
        } else {
            optimizer.state().erase(key);
        }
    });
    return {};
}

}  // namespace

Result<void> collect_optimizer(Optimizer& optimizer, const torch::nn::Module& model,
                               std::map<std::string, torch::Tensor>& tensors) {
    Result<std::vector<NamedParameter>> parameters = parameters_of(optimizer, model);
    if (!parameters) {
        return parameters.error();
    }
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
        tensors[learning_rate_name(i)] =
            torch::scalar_tensor(optimizer.param_groups()[i].options().get_lr(), torch::kFloat64);
    }
    return with_state_type(optimizer, [&](auto* type) -> Result<void> {
        using State = std::remove_pointer_t<decltype(type)>;
        for (const NamedParameter& parameter : *parameters) {
            const auto entry = optimizer.state().find(parameter.tensor.unsafeGetTensorImpl());
            if (entry == optimizer.state().end()) {
                continue;
            }
            for_each_field(static_cast<State&>(*entry->second), [&](const char* name, auto& field) {
                const std::string full_name = fmt::format("optimizer.{}.{}", parameter.name, name);
                if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::int64_t>) {
                    tensors[full_name] = torch::scalar_tensor(field, torch::kInt64);
                } else if (field.defined()) {
                    tensors[full_name] = field;
                }
            });
        }
        return {};
    });
}

Result<void> plan_optimizer(Optimizer& optimizer, const torch::nn::Module& model,
                            const std::map<std::string, torch::Tensor>& tensors,
                            std::vector<std::function<void()>>& commits,
                            std::set<std::string>& used) {
    Result<std::vector<NamedParameter>> parameters = parameters_of(optimizer, model);
    if (!parameters) {
        return parameters.error();
    }
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
        const std::string name = learning_rate_name(i);
        const auto stored = tensors.find(name);
        if (stored == tensors.end() || stored->second.dim() != 0 ||
            stored->second.scalar_type() != torch::kFloat64) {
            return Error{ErrorCode::BadMessage,
                         fmt::format("{} is missing or no float64 scalar; this optimizer has {} "
                                     "parameter groups",
                                     name, optimizer.param_groups().size())};
        }
        used.insert(name);
        commits.emplace_back([&optimizer, i, rate = stored->second.item<double>()] {
            optimizer.param_groups()[i].options().set_lr(rate);
        });
    }
    return with_state_type(optimizer, [&](auto* type) -> Result<void> {
        using State = std::remove_pointer_t<decltype(type)>;
        for (const NamedParameter& parameter : *parameters) {
            const Result<void> planned =
                plan_parameter<State>(optimizer, parameter, tensors, commits, used);
            if (!planned) {
                return planned;
            }
        }
        return {};
    });
}

}  // namespace ddprun::worker
