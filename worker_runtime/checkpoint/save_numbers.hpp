#pragma once

#include <cstdint>

#include "worker_runtime/checkpoint/manifest.hpp"

namespace ddprun::worker {

/// Numbers the saves of one training, so that of two saves of one step the later one has the larger
/// number, wherever they are. Ranks that make the same calls count alike. Pure.
class SaveNumbers {
public:
    /// The number of a save of `step` that begins now: 0 if it is the first one of the newest step.
    /// A number is given once per step, whether the save succeeds or not.
    [[nodiscard]] std::uint64_t next(std::int64_t step);

    /// The training goes on from this save.
    void resumed(const SavedStep& from);

private:
    std::int64_t newest_ = -1;  ///< step of which there may be a save
    std::uint64_t last_ = 0;    ///< the largest number so far
};

}  // namespace ddprun::worker
