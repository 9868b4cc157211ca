#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace ddprun::launcher {

/// The folder of the newest run in `log_dir` that has had workers, in the order of
/// agent::runs_in(); of the job `job`, and of its node `node`, if these are not empty, of any user.
/// Fails with NotFound and a line for the user.
[[nodiscard]] Result<std::string> find_newest_run(const std::string& log_dir,
                                                  const std::string& job,
                                                  const std::string& node = {});

/// The generations that had workers on this node, ascending.
[[nodiscard]] std::vector<std::uint64_t> generations_of_run(const std::string& run);

/// The folder in which a generation has its workers' folders, and links by rank, as a run has.
[[nodiscard]] std::string folder_of_generation(const std::string& run, std::uint64_t generation);

/// The ranks that have run on this node, ascending. `run` is the folder of a run, or of one
/// generation, as in folder_of_rank().
[[nodiscard]] std::vector<int> ranks_of_run(const std::string& run);

/// The folder in which the newest worker of that rank writes; empty if there has been none.
[[nodiscard]] std::string folder_of_rank(const std::string& run, int rank);

/// Whether the run is over: its report exists.
[[nodiscard]] bool is_run_over(const std::string& run);

}  // namespace ddprun::launcher
