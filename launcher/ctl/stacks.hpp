#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/ctl/merged_stacks.hpp"

namespace ddprun::launcher {

struct TakenStacks {
    std::vector<RankStacks> ranks;
    std::string hint;  ///< a line about what would show more; empty: nothing would
};

/// Has the stacks of the workers taken that the ddprun of the run in `folder` tells of: of `ranks`,
/// or of all if these are empty. No worker is ended, and none waits longer than a tool holds it:
/// Python's does not, a debugger does while it reads. Blocks for
/// WatchLimits::asked_stacks_timeout at the longest. NotFound: it has no such rank, or none that
/// runs.
[[nodiscard]] Result<TakenStacks> take_stacks(const std::string& folder,
                                              const std::vector<int>& ranks);

}  // namespace ddprun::launcher
