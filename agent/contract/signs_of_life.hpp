#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.hpp"

namespace ddprun::agent {

struct WorkerSeen {
    int pid = 0;                            ///< 0: it has not been started yet
    std::optional<std::uint64_t> progress;  ///< the last step that it has told

    bool operator==(const WorkerSeen&) const = default;
};

/// The result of one check of this node's workers. Amounts only grow within a generation.
struct SignsOfLife {
    Duration cpu{};                   ///< used by all their processes together
    std::uint64_t output_bytes = 0;   ///< all that they have written
    std::vector<WorkerSeen> workers;  ///< by local rank
    /// Something that shows by itself: output waits for a reader.
    bool is_busy = false;
};

}  // namespace ddprun::agent
