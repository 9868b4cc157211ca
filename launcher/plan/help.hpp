#pragma once

#include <string>

#include "base/result.hpp"
#include "launcher/plan/flags.hpp"

namespace ddprun::launcher {

/// --help prints this: how to call ddprun, and the flags that are `is_common`.
[[nodiscard]] std::string help_text();

/// --help-all prints this: every flag that is not Hidden, the exit codes and the variables.
[[nodiscard]] std::string help_all_text();

/// --version prints this.
[[nodiscard]] std::string version_text();

/// --print-completion prints this: `shell` reads it to complete ddprun's flags. Fails with a line
/// for the user if ddprun has no completions for that shell.
[[nodiscard]] Result<std::string> completion_text(const Given& shell);

}  // namespace ddprun::launcher
