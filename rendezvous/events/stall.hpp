#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/wire/messages.hpp"

/// Whether the ranks of a job still get further, and for whom they wait. Pure.
namespace ddprun::rdzv {

/// A rank, and what its node has told of it so long ago.
struct RankSeen {
    Rank rank;
    std::string_view host;
    const RankProgress* told;
    Duration ago{};
};

/// The rank that the others wait for, as far as steps and activities show it.
struct Culprit {
    std::optional<Rank> rank;           ///< the first of those that are named; none stands out
    std::string host;                   ///< its node
    std::optional<std::uint64_t> step;  ///< the least that any rank has told
    std::string text;                   ///< for people; empty: nothing is known
};

/// Names the ranks that are behind, at a lower step than others. Among ranks at one step, it
/// names those that certainly do not wait for others: they are stopped, else the kernel holds
/// them, else they sleep. One that alone computes is named if no GPU is in sight, for which ranks
/// may wait by computing. Else it names those that wait for the workers' store while others wait
/// for something else. No rank is named if all candidates do the same. Ranks that have ended do
/// not count.
[[nodiscard]] Culprit find_culprit(const std::vector<RankSeen>& ranks, const WatchLimits& limits);

struct Stall {
    Milliseconds age{0};  ///< since the last step of any rank; if none reports steps, output
    Culprit culprit;
    std::string text;  ///< all of it, for people
};

/// No rank has reported a step for WatchLimits::stall_after and for stall_steps of their steps, or
/// for stall_unpaced_after while it is not known how long a step takes. If no rank reports steps:
/// all have written nothing for stall_output_after, and not all compute. Ages are those of the
/// look: news that come seldom make no stall.
[[nodiscard]] std::optional<Stall> find_stall(const std::vector<RankSeen>& ranks,
                                              const WatchLimits& limits);

/// Whether a last step is too long ago by its `age`. `step`: how long one takes, if that is known.
[[nodiscard]] bool is_stalled(Duration age, const std::optional<Duration>& step,
                              const WatchLimits& limits);

/// The same of a rank. False: it has told none.
[[nodiscard]] bool is_stalled(const RankProgress& rank, const WatchLimits& limits);

}  // namespace ddprun::rdzv
