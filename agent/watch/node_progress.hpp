#pragma once

#include <cstdint>
#include <vector>

#include "agent/watch/chronicle.hpp"
#include "agent/watch/rank_pace.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// The known state of one worker at one look. The local rank and all of its steps are unset:
/// NodeProgress makes them of `moments`.
struct WorkerState : rdzv::RankProgress {
    WorkerMoments moments;
};

/// For how long it is so since `at`, as a message has it.
[[nodiscard]] std::uint64_t age_ms(Instant now, Instant at);

/// How far the workers of this node are, put together on request. Pure.
class NodeProgress {
public:
    explicit NodeProgress(const WatchLimits& limits) : limits_(limits) {}

    /// `workers` of `generation`, by local rank, as they are at `now`.
    [[nodiscard]] rdzv::Progress tell(Instant now, Generation generation,
                                      const std::vector<WorkerState>& workers);

private:
    WatchLimits limits_;
    Generation generation_;
    std::vector<RankPace> paces_;  ///< by local rank
};

}  // namespace ddprun::agent
