#pragma once

#include <string>
#include <vector>

#include "base/instant.hpp"

namespace ddprun::agent {

/// A program that shows the stacks of a living process on its stdout.
struct Tool {
    std::string title;
    std::vector<std::string> command;  ///< [0] is a path
};

/// The tools that are installed here for one process.
struct FoundTools {
    /// In the order in which they are to run: two cannot examine one process at the same time.
    std::vector<Tool> tools;
    std::string missing;  ///< a line for each that would help
    bool lacks_py_spy = false;
};

/// Those of `pid`. `program` is what the worker executes: py-spy is sought beside it, then in PATH.
[[nodiscard]] FoundTools tools_for(int pid, const std::string& program);

/// A file for which tools run one after the other.
struct ToolQueue {
    int file = -1;  ///< gets what they write, and how each ended
    std::vector<Tool> tools;
};

/// Runs the queues beside each other. A tool that runs at `deadline` is killed, one that has not
/// begun is left out; the files say so. SIGCHLD must be blocked. Blocks until then.
void run_tools(std::vector<ToolQueue> queues, Instant deadline);

}  // namespace ddprun::agent
