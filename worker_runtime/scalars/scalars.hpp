#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "worker_runtime/env/environment.hpp"
#include "worker_runtime/scalars/tensorboard_file.hpp"

namespace ddprun::worker {

/// Where a job's curves are: $DDPRUN_TENSORBOARD_DIR, as the worker's environment has it; else
/// runs/<job>, or runs/local without ddprun, in the working directory. Every generation of a job
/// has the same.
[[nodiscard]] std::string scalars_folder(const WorkerEnvironment& place);

/// The curves that one worker writes: rank 0 of a generation, in a file of its own. One thread.
class Scalars {
public:
    /// Touches nothing.
    Scalars(const WorkerEnvironment& place, std::string folder);

    /// Adds a value of the curve `tag` at `step`, dated now; does nothing on other ranks. The first
    /// call creates the file, marks a start at `step` and adds the curve ddprun/generation, which
    /// shows where restarts were. Fails once: after that nothing is written.
    [[nodiscard]] Result<void> add(const std::string& tag, double value, std::int64_t step);

private:
    Result<void> write(const std::string& tag, double value, std::int64_t step);

    std::string folder_;
    std::uint64_t generation_;
    bool writes_;
    std::optional<TensorBoardFile> file_;
};

}  // namespace ddprun::worker
