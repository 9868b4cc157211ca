#pragma once

#include <cstddef>

#include "base/instant.hpp"

namespace ddprun {

/// Bounds of what is said when logs cannot be written. Not with the others: what decides about jobs
/// does not depend on them.
struct LogLimits {
    // Logs that cannot be written.
    /// between two lines of one reason: a full disk stays full, for all workers alike
    Milliseconds log_error_every{60000};
    /// kept free for run.json's end when it is begun: a block of most file systems
    std::size_t run_note_bytes_max = 4096;
    std::size_t lost_ranks_max = 1024;  ///< of whom lost lines are counted; more than a node has
    std::size_t log_error_reasons_max = 128;  ///< remembered; there are about as many error numbers
};

}  // namespace ddprun
