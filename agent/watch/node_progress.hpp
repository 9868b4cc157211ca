#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/watch/chronicle.hpp"
#include "agent/watch/rank_pace.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// What is known of one worker when somebody looks.
struct WorkerState {
    WorkerMoments moments;
    rdzv::RankPhase phase = rdzv::RankPhase::Spawned;
    std::optional<std::uint64_t> memory_bytes;
    std::optional<std::uint64_t> memory_peak_bytes;
    std::optional<int> gpu_permille;
    std::optional<std::uint64_t> gpu_memory_bytes;
    std::optional<std::uint64_t> gpu_memory_total_bytes;
    std::optional<std::uint64_t> gpu_milliwatts;
    std::optional<std::uint64_t> log_bytes;
};

/// How far the workers of this node are, put together when somebody looks. Pure.
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
