#pragma once

#include <cstddef>

#include "base/instant.hpp"

namespace ddprun {

/// Bounds of reading a checkpoint ahead of the workers. Not with the others: what decides about
/// jobs does not depend on them.
struct ReadAheadLimits {
    // Reading a checkpoint ahead.
    std::size_t read_ahead_places_max = 16;   ///< of checkpoints, that a node's workers report
    std::size_t read_ahead_files_max = 4096;  ///< of one checkpoint
    int read_ahead_folders_deep = 2;          ///< below a checkpoint's own; libraries nest no more
    std::size_t read_ahead_piece = std::size_t{1} << 20;  ///< bytes read at once
    int read_ahead_memory_part = 50;  ///< percent of the free memory that may be filled
    /// after the last workers' end has begun; earlier once the next ones have been started. The
    /// delay keeps reading ahead from slowing the end of the last workers or the start of the next
    Milliseconds read_ahead_after{50};
    Milliseconds read_ahead_timeout{60000};  ///< then it ends; the workers read by themselves
};

}  // namespace ddprun
