#pragma once

#include <cstdint>
#include <string>

#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "worker_runtime/env/environment.hpp"

namespace ddprun::worker {

/// The curves that one worker writes: rank 0 of a generation, in a file of its own. Their folder is
/// $DDPRUN_TENSORBOARD_DIR, as the worker's environment has it; else runs/<job>, or runs/local
/// without ddprun, in the working directory: the same for every generation of a job. The files in
/// it are one run. One thread.
class Scalars {
public:
    /// Touches nothing.
    explicit Scalars(const WorkerEnvironment& place);

    /// Adds a value of the curve `tag` at `step`, dated now; does nothing on other ranks. It is in
    /// the file when this returns, by one write(): a process that is killed loses none and leaves
    /// no half of one. The first call creates the file, marks a start at `step` and adds the curve
    /// ddprun/generation, which shows where restarts were. Fails once: after that nothing is
    /// written.
    [[nodiscard]] Result<void> add(const std::string& tag, double value, std::int64_t step);

private:
    Result<void> write(const std::string& tag, double value, std::int64_t step);
    Result<void> create(Milliseconds now);

    std::string folder_;
    std::uint64_t generation_;
    bool writes_;
    std::string path_;
    UniqueFd file_;
};

}  // namespace ddprun::worker
