#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ddprun::launcher {

/// Reads the report.json in the folder of a run, which another user may have written. Not an
/// object: it has none, or one that is no report.
[[nodiscard]] nlohmann::json report_of_run(const std::string& folder);

/// Makes one JSON object of the run.json, report.json and events.jsonl that an ended job has left
/// in the folders of its nodes on this machine (at least one, the newest first). docs/ddpctl.md has
/// its fields. `log_dir`: what --log-dir has named, for the commands in `next`; empty: nothing.
[[nodiscard]] nlohmann::ordered_json ended_job(const std::vector<std::string>& folders,
                                               const std::string& log_dir);

/// The same for people: how it ended and when, who failed, where the logs are, what to type next.
/// Pure, but for the time zone.
[[nodiscard]] std::string ended_job_text(const nlohmann::ordered_json& job);

}  // namespace ddprun::launcher
