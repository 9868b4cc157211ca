#pragma once

#include <string>

#include "agent/watch/chronicle.hpp"
#include "agent/watch/rank_pace.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/events/time_use.hpp"

namespace ddprun::agent {

/// The line that stays below all others on the terminal of group rank 0's ddprun: how far the job
/// is, as rank 0 has told it, and when it was last restarted. Pure; owned by RunEvents.
class LiveLine {
public:
    explicit LiveLine(const WatchLimits& limits) : limits_(limits), pace_(limits) {}

    /// Workers of a generation are started. Without group rank 0 here there is no line.
    void begin(Generation generation, bool is_here, int nodes, int workers);

    /// Whether it is this node that shows it.
    [[nodiscard]] bool is_here() const { return is_here_; }

    /// As of `now`; `rank0`: what that worker has told, `use`: of the whole run. Empty until the
    /// first step that it reports: until then nothing moves that other lines do not show.
    [[nodiscard]] std::string text(Instant now, const WorkerMoments& rank0,
                                   const rdzv::TimeUse& use);

private:
    WatchLimits limits_;
    Generation generation_;
    bool is_here_ = false;
    bool has_steps_ = false;  ///< of any generation
    int nodes_ = 1;
    int workers_ = 1;
    RankPace pace_;  ///< of rank 0
};

/// `time` in the two largest of its units: "850 ms" is "1 s"; "2 h 5 min".
[[nodiscard]] std::string rough_time(Duration time);

}  // namespace ddprun::agent
