#pragma once

#include <string_view>

namespace ddprun::agent {

/// What saves the stacks of workers that hang, a program beside ddprun.
inline constexpr std::string_view kStacksProgram = "ddprun-stacks";

/// Its exit code if it has saved what it could, but of Python's stacks none: py-spy is not
/// installed.
inline constexpr int kStacksWithoutPySpy = 3;

}  // namespace ddprun::agent
