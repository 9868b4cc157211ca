#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace ddprun::launcher {

/// The hosts of Slurm's short form, in its order: `gpu[01-03,7],login-[1-2]x[0-1]` is gpu01, gpu02,
/// gpu03, gpu7, login-1x0, login-1x1, login-2x0, login-2x1. The first number of a range says how
/// many digits all have. At most Limits::nodes_max hosts. Fails with what is wrong with the list,
/// to be put behind its name and value.
[[nodiscard]] Result<std::vector<std::string>> expand_host_list(std::string_view list);

/// The numbers of Slurm's other short form, one for each node: `4(x2),3` is 4, 4, 3. Bounded and
/// failing alike.
[[nodiscard]] Result<std::vector<int>> expand_counts(std::string_view list);

}  // namespace ddprun::launcher
