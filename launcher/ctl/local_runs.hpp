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

/// Which job on this machine is meant.
struct RunWanted {
    std::string log_dir;
    /// A path, the name of a folder in `log_dir`, a job or the pid of a ddprun. Empty: the only job
    /// that is at work here.
    std::string name;
    /// Only this one of the job's nodes on this machine: its host's name, as run.json has it;
    /// empty: any.
    std::string node = {};
    bool takes_ended = false;  ///< one that is over will do, and without a name the newest
};

/// Runs of one job: its nodes on this machine.
struct ChosenJob {
    std::vector<std::string>
        folders;  ///< at least one, by name; of a job that is over the newest first
    bool is_at_work = true;
};

/// The job that is meant. Runs at work are preferred. NotFound: none or several; the text lists
/// them.
[[nodiscard]] Result<ChosenJob> choose_job(const RunWanted& wanted);

/// "gpu-07, gpu-07#2": the names of its nodes here.
[[nodiscard]] std::string nodes_of(const ChosenJob& job);

/// The one run that is meant; of a job that is over the newest. NotFound, too: the job has several
/// nodes at work here; the text lists them.
[[nodiscard]] Result<std::string> choose_run(const RunWanted& wanted);

/// Asks the ddprun of the run in `folder` for its state: one JSON object.
[[nodiscard]] Result<std::string> ask_run(const std::string& folder);

/// Gives the events of that run from number `from` on, a line each, to `take`. `follows`: until the
/// run is over. Otherwise, or if the ddprun does not answer, the run's file has the events.
[[nodiscard]] Result<void> show_events(const std::string& folder, std::uint64_t from, bool follows,
                                       const TakePiece& take);

/// Gives the answer of that run to GET `target` to `take`, as it comes.
[[nodiscard]] Result<void> show_answer(const std::string& folder, const std::string& target,
                                       const TakePiece& take);

/// Whose run that is.
[[nodiscard]] Result<std::string> job_of_run(const std::string& folder);

/// Sends POST `target` with `json` to the ddprun of that run; returns any answer, also a refusal.
[[nodiscard]] Result<HttpAnswer> post_to_run(const std::string& folder, const std::string& target,
                                             const std::string& json);

}  // namespace ddprun::launcher
