#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/ctl/http_request.hpp"

namespace ddprun::launcher {

/// The folders of the runs whose ddprun is at work on this machine, as this user's: those in
/// `log_dir`, and those anywhere that a living process of this user holds. Sorted.
[[nodiscard]] std::vector<std::string> running_here(const std::string& log_dir);

/// The folder of the run that `wanted` names: a path, the name of a folder in `log_dir`, a job or
/// the pid of a ddprun. Empty: the only one that runs here. `takes_ended`: one that is over will
/// do, and without a name the newest. NotFound: none or several; the text lists them.
[[nodiscard]] Result<std::string> choose_run(const std::string& log_dir, const std::string& wanted,
                                             bool takes_ended);

/// What the ddprun of the run in `folder` says of itself: one JSON object.
[[nodiscard]] Result<std::string> ask_run(const std::string& folder);

/// Gives the events of that run from number `from` on, a line each, to `take`. `follows`: until it
/// is over. Of a run that is over, or does not answer, what its file has.
[[nodiscard]] Result<void> show_events(const std::string& folder, std::uint64_t from, bool follows,
                                       const TakePiece& take);

/// Gives the answer of that run to GET `target` to `take`, as it comes.
[[nodiscard]] Result<void> show_answer(const std::string& folder, const std::string& target,
                                       const TakePiece& take);

/// Whose run that is.
[[nodiscard]] Result<std::string> job_of_run(const std::string& folder);

/// What the ddprun of that run answers to POST `target` with `json`, whatever that is.
[[nodiscard]] Result<HttpAnswer> post_to_run(const std::string& folder, const std::string& target,
                                             const std::string& json);

}  // namespace ddprun::launcher
