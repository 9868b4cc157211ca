#pragma once

#include <string>

#include "base/result.hpp"
#include "launcher/plan/flags.hpp"

namespace ddprun::launcher {

/// What --help prints.
[[nodiscard]] std::string help_text();

/// What --version prints.
[[nodiscard]] std::string version_text();

/// --print-completion prints this: `shell` reads it to complete ddprun's flags. Fails with a line
/// for the user if ddprun has no completions for that shell.
[[nodiscard]] Result<std::string> completion_text(const Given& shell);

}  // namespace ddprun::launcher
