#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/output/run_folder.hpp"
#include "base/instant.hpp"

namespace ddprun::launcher {

/// "2026-11-22 18:20:33", of this machine's clock; "-": no time.
[[nodiscard]] std::string run_time_text(std::optional<Milliseconds> time);

/// "running", "over", "killed", "elsewhere" or "unclear".
[[nodiscard]] std::string state_name(agent::RunState state);

/// The runs as people read them: a table, with times of this machine's clock.
[[nodiscard]] std::string runs_text(const std::vector<agent::FoundRun>& runs);

/// The same for programs: an object a line, with the times of run.json.
[[nodiscard]] std::string runs_json(const std::vector<agent::FoundRun>& runs);

/// "  lost    rank 3: 1,204 lines of its log were lost: …", a line for each rank that `told`, a
/// note or a /status, says lost some.
[[nodiscard]] std::string lost_rows(const nlohmann::ordered_json& told);

}  // namespace ddprun::launcher
