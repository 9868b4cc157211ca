#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include <torch/types.h>

namespace ddprun::worker {

/// How the ranks of a group agree on a stop request without a collective of its own: one bucket of
/// gradients carries a word along, this rank's wish, and brings back the sum of all wishes. One per
/// group; used by its DistributedDataParallel and its Worker, on one thread at a time.
struct StopBallot {
    /// This rank's wish, asked when the bucket leaves.
    std::function<bool()> is_stop_wanted = [] { return false; };
    /// The answer of the last bucket, once its backward pass has returned: one number, above 0
    /// if any rank wants to stop. Undefined: no bucket has left since the answer was taken.
    torch::Tensor word;

    /// By the reducer of each DistributedDataParallel: true while gradients are added up that no
    /// pass has averaged yet. The same on every rank, as the passes are. A group and its sub-groups
    /// have one: each rank trains in step with all.
    std::shared_ptr<std::map<const void*, std::function<bool()>>> is_adding_up =
        std::make_shared<std::map<const void*, std::function<bool()>>>();

    [[nodiscard]] bool holds_gradients() const {
        return std::any_of(is_adding_up->begin(), is_adding_up->end(),
                           [](const auto& reducer) { return reducer.second(); });
    }
};

}  // namespace ddprun::worker
