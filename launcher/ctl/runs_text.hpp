#pragma once

#include <string>
#include <vector>

#include "agent/output/run_folder.hpp"

namespace ddprun::launcher {

/// The runs as people read them: a table, with times of this machine's clock.
[[nodiscard]] std::string runs_text(const std::vector<agent::FoundRun>& runs);

/// The same for programs: an object a line, with the times of run.json.
[[nodiscard]] std::string runs_json(const std::vector<agent::FoundRun>& runs);

}  // namespace ddprun::launcher
