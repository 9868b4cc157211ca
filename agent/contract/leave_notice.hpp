#pragma once

#include <optional>
#include <string>

#include "base/instant.hpp"

namespace ddprun::agent {

/// A notice that this node will be taken away.
struct LeaveNotice {
    std::string why;                 ///< for people: "slurm job 42.0 reaches its time limit"
    std::optional<Instant> gone_at;  ///< nothing runs here any more then; none: not told
    /// It was to be expected: workers go on as long as that leaves them the time to save.
    bool is_planned = false;
};

}  // namespace ddprun::agent
