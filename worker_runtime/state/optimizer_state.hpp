#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/state/state_tensors.hpp"
#include "worker_runtime/state/stored_state.hpp"

/// The state of LibTorch's optimizers, as named tensors: `<optimizer>.<parameter>.<field>`, with
/// step counts as int64 scalars, and the learning rate of each group as `<optimizer>.lr.<group>`, a
/// float64 scalar. For Adam, AdamW, SGD, RMSprop and Adagrad, and for a ShardedOptimizer of them: a
/// field of it is flat, [elements of the parameter], and each rank has a part.
namespace ddprun::worker {

/// By TensorImpl.
using ParameterNames = std::map<const void*, std::string>;

struct NamedOptimizer {
    const std::string& name;
    torch::optim::Optimizer& optimizer;
};

/// Adds the state of an optimizer to `tensors`; the tensors are not copied. InvalidArgument for
/// another kind of optimizer, or one with a parameter that `names` does not have.
[[nodiscard]] Result<void> collect_optimizer(const NamedOptimizer& named,
                                             const ParameterNames& names, StateTensors& tensors);

/// Adds what the first step of an optimizer will make, as far as `tensors` lacks it, for names and
/// sizes alone: the parameter stands for each tensor of its shape.
void expect_optimizer(const NamedOptimizer& named, const ParameterNames& names,
                      StateTensors& tensors);

/// Compares what `tensors` holds for an optimizer with its parameters and adds to `commits` what
/// puts it back, and to `used` the names it takes. Changes nothing itself. A field may be stored
/// flat or in its parameter's shape, whichever it is here. A parameter whose name
/// is in `without` keeps its state: the checkpoint lacks the parameter. Any other one without
/// stored state had none when it was saved, and loses what it has.
[[nodiscard]] Result<void> plan_optimizer(const NamedOptimizer& named, const ParameterNames& names,
                                          const StoredTensorsByName& tensors,
                                          const std::set<std::string>& without,
                                          std::vector<std::function<void()>>& commits,
                                          std::set<std::string>& used);

}  // namespace ddprun::worker
