#pragma once

#include <string_view>
#include <vector>

namespace ddprun::launcher {

/// The one of `names` that `typed` misspells, in at most two letters and a third of the name:
/// --seed is not a misspelt --tee. Empty: none.
[[nodiscard]] std::string_view nearest_name(std::string_view typed,
                                            const std::vector<std::string_view>& names);

}  // namespace ddprun::launcher
