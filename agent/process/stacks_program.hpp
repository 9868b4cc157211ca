#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/instant.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// The program beside ddprun that saves the stacks of workers.
inline constexpr std::string_view kStacksProgram = "ddprun-stacks";

/// Its exit code if it has saved what it could, but of Python's stacks none: py-spy is not
/// installed.
inline constexpr int kStacksWithoutPySpy = 3;

/// The task of ddprun-stacks.
struct StacksOrder {
    std::string folder;  ///< made if it is missing; gets stacks_file() of each worker
    Milliseconds timeout{};
    std::size_t bytes_max = 0;                 ///< of each file
    std::string program;                       ///< what the workers execute
    std::vector<std::pair<int, int>> workers;  ///< rank and process
};

/// The command that saves within `timeout`: what it gives up before is told in the files.
[[nodiscard]] Result<std::vector<std::string>> stacks_command(const StacksOrder& order);

/// The program in one of the absolute folders of PATH; empty: in none.
[[nodiscard]] std::string stack_tool_in_path(std::string_view name);

/// The py-spy beside the Python `program`, where pip installs it, else that of PATH; empty: neither
/// exists.
[[nodiscard]] std::string path_of_py_spy(const std::string& program);

/// Returns the line that says that Python's stacks are lacking, for users.
[[nodiscard]] std::string no_py_spy_text(const std::string& program);

[[nodiscard]] std::string stacks_file(const std::string& folder, int rank);

}  // namespace ddprun::agent
