#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace ddprun::launcher {

/// A run that is at work on this machine, and what its ddprun says of itself.
struct JobHere {
    std::string folder;
    Result<std::string> answer;  ///< JSON, docs/events.md
};

/// A table, a run a line. Texts of others lose their control characters.
[[nodiscard]] std::string jobs_text(const std::vector<JobHere>& jobs);

/// One object a line; of those that do not answer `run` and `error`.
[[nodiscard]] std::string jobs_json(const std::vector<JobHere>& jobs);

/// One of them with all it says.
[[nodiscard]] std::string job_text(const std::string& answer);

}  // namespace ddprun::launcher
