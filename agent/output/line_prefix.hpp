#pragma once

#include <string>
#include <string_view>

#include "base/tagged.hpp"

namespace ddprun::agent {

/// `[gpu-07 3] `: ddprun's own prefix of a console line.
[[nodiscard]] std::string node_prefix(std::string_view hostname, Rank rank);

/// torchrun's prefix of a tee'd line: substitute() with the names `role_name`, `hostname`, `rank`
/// and `local_rank`. An empty `text` is torchrun's default, `[${role_name}${local_rank}]:`.
[[nodiscard]] std::string torchrun_prefix(std::string_view text, std::string_view role,
                                          std::string_view hostname, Rank rank,
                                          LocalRank local_rank);

}  // namespace ddprun::agent
