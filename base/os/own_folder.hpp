#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace ddprun {

/// Makes the folder `path` with mode 0700, and its parents, if it is missing. For a place with a
/// name that other users can guess: fails if `path` is something else (a symbolic link, say),
/// belongs to another user, or others may write to it. `what` names it in the error ("the state
/// folder").
[[nodiscard]] Result<void> make_own_folder(const std::string& path, std::string_view what);

}  // namespace ddprun
