#include "agent/watch/hang_notice.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include <fmt/format.h>

namespace ddprun::agent {

namespace {

bool tells_steps(const WorkerState& worker) {
    return worker.phase != rdzv::RankPhase::Finished && worker.phase != rdzv::RankPhase::Failed &&
           worker.moments.last;
}

/// Lower is further behind; of those at one step, who told it earlier.
bool is_behind(const WorkerState& one, const WorkerState& other) {
    const StepTold& a = *one.moments.last;
    const StepTold& b = *other.moments.last;
    return a.number != b.number ? a.number < b.number : a.at < b.at;
}

std::int64_t seconds(Duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

std::optional<HangSeen> HangNotice::look_at_steps(Instant now, Generation generation,
                                                  Rank base_rank, const std::string& host,
                                                  const std::vector<WorkerState>& workers) {
    if (after_ == Milliseconds::zero() || is_said(generation)) {
        return std::nullopt;
    }
    std::optional<std::size_t> behind;
    for (std::size_t i = 0; i < workers.size(); ++i) {
        if (!tells_steps(workers[i])) {
            continue;
        }
        if (workers[i].moments.last->at + after_ > now) {
            return std::nullopt;
        }
        if (!behind || is_behind(workers[i], workers[*behind])) {
            behind = i;
        }
    }
    if (!behind) {
        return std::nullopt;
    }
    said_ = generation;
    const StepTold& last = *workers[*behind].moments.last;
    const Rank rank(base_rank.value() + static_cast<int>(*behind));
    return HangSeen{.rank = rank,
                    .step = last.number,
                    .host = host,
                    .text = fmt::format(
                        "no rank on {} has told a step for {} s; furthest behind is rank {}, "
                        "at step {} since {} s",
                        host, seconds(after_), rank.value(), last.number, seconds(now - last.at))};
}

std::optional<HangSeen> HangNotice::take(Instant now, Generation generation,
                                         const std::vector<WorkerState>& workers,
                                         std::optional<HangSeen> seen) {
    const bool go_on =
        std::any_of(workers.begin(), workers.end(), [this, now](const WorkerState& worker) {
            return tells_steps(worker) && worker.moments.last->at + after_ > now;
        });
    if (!seen || go_on || is_said(generation) || after_ == Milliseconds::zero()) {
        return std::nullopt;
    }
    said_ = generation;
    return seen;
}

}  // namespace ddprun::agent
