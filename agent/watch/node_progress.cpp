#include "agent/watch/node_progress.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace ddprun::agent {

namespace {

std::uint64_t nanoseconds(Duration time) {
    return static_cast<std::uint64_t>(
        std::max<std::int64_t>(std::chrono::nanoseconds(time).count(), 0));
}

}  // namespace

std::uint64_t age_ms(Instant now, Instant at) {
    const Duration age = std::max(now - at, Duration::zero());
    return static_cast<std::uint64_t>(std::chrono::duration_cast<Milliseconds>(age).count());
}

rdzv::Progress NodeProgress::tell(Instant now, Generation generation,
                                  const std::vector<WorkerState>& workers) {
    if (generation != generation_ || workers.size() != paces_.size()) {
        generation_ = generation;
        paces_.assign(workers.size(), RankPace(limits_));
    }
    rdzv::Progress progress{.generation = generation};
    for (std::size_t i = 0; i < workers.size(); ++i) {
        const WorkerState& worker = workers[i];
        const WorkerMoments& moments = worker.moments;
        rdzv::RankProgress rank = worker;
        rank.local_rank = LocalRank(static_cast<int>(i));
        rank.step = moments.step;
        if (moments.step && moments.first_number && *moments.step >= *moments.first_number) {
            rank.steps = *moments.step - *moments.first_number + 1;
            rank.samples = moments.samples > 0 ? std::optional(moments.samples) : std::nullopt;
        }
        RankPace& pace = paces_[i];
        if (moments.last) {
            if (!pace.has_begun() && moments.first_step && moments.first_number) {
                pace.begin(*moments.first_number, *moments.first_step, moments.last->first_waited);
            }
            pace.add(*moments.last);
            rank.step_age_ms = age_ms(now, moments.last->at);
        }
        if (const std::optional<RankPace::Step> step = pace.step()) {
            rank.step_ns = std::max<std::uint64_t>(nanoseconds(step->whole), 1);
            if (step->own) {
                rank.own_ns = nanoseconds(*step->own);
            }
        }
        progress.ranks.push_back(rank);
    }
    return progress;
}

}  // namespace ddprun::agent
