#pragma once

#include <optional>
#include <vector>

#include "base/tagged.hpp"

/// Finds the rank that makes all others wait. Pure.
namespace ddprun::rdzv {

/// How one rank spends a step, in nanoseconds of late.
struct StepTime {
    Rank rank;
    double whole = 0;
    double own = 0;  ///< it did not wait for other ranks
};

struct Slowest {
    Rank rank;
    double cost_share = 0;  ///< of a step, which takes all ranks longer because of this rank
};

/// How often one rank waited when its node looked, if its program does not report how long.
struct WaitLooks {
    Rank rank;
    int count = 0;          ///< looks so far that told what it did
    double wait_share = 0;  ///< of late: of the looks, those at which it waited

    void add(bool waits);
};

/// Ranks that train together all make the same number of steps: the others wait for the slow one,
/// because it has more to do of its own in a step. It is named if it stands out from the median by
/// more than the others are spread (four times their median deviation) and by more than a twentieth
/// of a step. Returns nothing if no rank stands out, or fewer than two are known.
[[nodiscard]] std::optional<Slowest> find_slowest(const std::vector<StepTime>& ranks);

/// The one rank that hardly ever waits (a quarter of the looks at most) while each other one does
/// half of the time or more. Their least share is its cost. Returns nothing if no rank is like
/// that, or some rank has fewer than ten looks.
[[nodiscard]] std::optional<Slowest> find_slowest_by_looks(const std::vector<WaitLooks>& ranks);

}  // namespace ddprun::rdzv
