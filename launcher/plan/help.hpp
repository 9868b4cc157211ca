#pragma once

#include <string>

namespace ddprun::launcher {

/// What --help prints.
[[nodiscard]] std::string help_text();

/// What --version prints.
[[nodiscard]] std::string version_text();

}  // namespace ddprun::launcher
