#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/ctl/merged_stacks.hpp"

namespace ddprun::launcher {

struct TakenStacks {
    std::vector<RankStacks> ranks;
    int world_size = 0;  ///< of the generation: the others are on other machines; 0: not known
    std::string hint;    ///< a line about what would show more; empty: nothing would
};

/// Has stacks taken of the workers that the ddpruns of the runs in `folders`, nodes of one job,
/// report: of `ranks`, or of all if these are empty. No worker is ended, and none waits longer
/// than a tool holds it: Python's does not, a debugger does while it reads. Blocks for
/// WatchLimits::asked_stacks_timeout at the longest. NotFound: they have no such rank, or none that
/// runs.
[[nodiscard]] Result<TakenStacks> take_stacks(const std::vector<std::string>& folders,
                                              const std::vector<int>& ranks);

}  // namespace ddprun::launcher
