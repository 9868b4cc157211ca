#pragma once

#include <string>

namespace ddprun {

/// Which file is at `path`, in words without a blank: another one there, or one that was written
/// since, has others. Empty: none.
[[nodiscard]] std::string file_identity(const std::string& path);

}  // namespace ddprun
