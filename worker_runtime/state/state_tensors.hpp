#pragma once

#include <map>
#include <optional>
#include <string>

#include <torch/types.h>

#include "worker_runtime/checkpoint/layout.hpp"

namespace ddprun::worker {

/// One tensor of a training's state, on the training's device; not a copy.
struct StateTensor {
    torch::Tensor tensor;
    /// True if only an optimizer's step changes the tensor. A save may then read it until the next
    /// step, and a whole tensor of this kind is the same on every rank.
    bool changes_in_steps_only = false;
    /// The place of this rank's part; nothing: it is whole.
    std::optional<Layout> layout = std::nullopt;
};

using StateTensors = std::map<std::string, StateTensor>;

/// A training's state as one rank sees it. Every rank has the same names, but for `of_rank_0`.
struct CollectedState {
    StateTensors models;
    std::string models_prefix;  ///< the beginning of all names in `models` that files leave out
    StateTensors others;
    StateTensors rows;       ///< a checkpoint has them of all ranks: [world, ...], by rank
    StateTensors sums;       ///< a checkpoint has their sum over the ranks
    StateTensors of_rank_0;  ///< empty on the others
    std::map<std::string, std::string> values;  ///< likewise
};

}  // namespace ddprun::worker
