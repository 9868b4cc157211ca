#include "agent/watch/hang_notice.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include <fmt/format.h>

#include "rendezvous/events/stall.hpp"

namespace ddprun::agent {

namespace {

bool tells_steps(const WorkerState& worker) {
    return worker.phase != rdzv::RankPhase::Finished && worker.phase != rdzv::RankPhase::Failed &&
           worker.moments.last;
}

}  // namespace

std::optional<HangSeen> HangNotice::look_at_steps(Instant now, Generation generation,
                                                  Rank base_rank, const std::string& host,
                                                  const std::vector<WorkerState>& workers) {
    if (after_ == Milliseconds::zero() || is_said(generation)) {
        return std::nullopt;
    }
    bool tell_steps = false;
    for (const WorkerState& worker : workers) {
        if (tells_steps(worker)) {
            tell_steps = true;
            if (worker.moments.last->at + after_ > now) {
                return std::nullopt;
            }
        }
    }
    if (!tell_steps) {
        return std::nullopt;
    }
    said_ = generation;
    std::vector<rdzv::RankProgress> told(workers.begin(), workers.end());
    std::vector<rdzv::RankSeen> ranks;
    for (std::size_t i = 0; i < workers.size(); ++i) {
        told[i].step = workers[i].moments.step;
        ranks.push_back({.rank = Rank(base_rank.value() + static_cast<int>(i)),
                         .host = host,
                         .told = &told[i]});
    }
    const rdzv::Culprit culprit = rdzv::find_culprit(ranks, WatchLimits());
    return HangSeen{
        .rank = culprit.rank,
        .step = culprit.step,
        .host = host,
        .text = fmt::format("no rank on {} has told a step for {} s; {}", host,
                            std::chrono::duration_cast<std::chrono::seconds>(after_).count(),
                            culprit.text)};
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
