#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/tagged.hpp"

namespace ddprun::agent {

/// substitute() with the one name `local_rank`.
[[nodiscard]] std::string substitute_local_rank(std::string_view text, LocalRank local_rank);

/// The argv of one worker: the substitution in every argument but the executable.
[[nodiscard]] std::vector<std::string> worker_command(const std::vector<std::string>& command,
                                                      LocalRank local_rank);

}  // namespace ddprun::agent
