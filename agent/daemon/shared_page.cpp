#include "agent/daemon/shared_page.hpp"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "base/read_ahead_limits.hpp"

namespace ddprun::agent {

namespace {

std::optional<StepTold> step_told(const std::optional<WorkerPage::Pace>& pace) {
    if (!pace) {
        return std::nullopt;
    }
    const auto waited = [](std::int64_t ns) {
        return ns < 0 ? std::nullopt : std::optional<Duration>(std::chrono::nanoseconds(ns));
    };
    return StepTold{.number = pace->step,
                    .at = pace->step_at,
                    .waited = waited(pace->waited_ns),
                    .first_waited = waited(pace->first_waited_ns),
                    .total_steps = pace->total_steps == kNoProgress
                                       ? std::nullopt
                                       : std::optional(pace->total_steps),
                    .loss = std::isnan(pace->loss) ? std::nullopt : std::optional(pace->loss)};
}

/// A worker may write any number: no time is before the clock's beginning.
std::optional<SavesTold> saves_told(const std::optional<WorkerPage::Saves>& saves) {
    if (!saves) {
        return std::nullopt;
    }
    const auto time = [](std::int64_t ns) -> Duration {
        return std::chrono::nanoseconds(std::max(ns, std::int64_t{0}));
    };
    return SavesTold{.saved = saves->saved,
                     .step = saves->step,
                     .saved_at = Instant(time(saves->saved_ns)),
                     .bytes = saves->state_bytes,
                     .stall = time(saves->stall_ns),
                     .took = time(saves->took_ns),
                     .places = saves->places,
                     .failed = saves->failed,
                     .failed_step = saves->failed_step,
                     .failed_at = Instant(time(saves->failed_ns)),
                     .failed_reason = saves->failed_reason,
                     .late = saves->late,
                     .in_time = saves->in_time,
                     .interval = time(saves->interval_ns)};
}

}  // namespace

Result<void> SharedPage::make(const StartWorkers& start) {
    watch_.reset();
    page_.reset();
    Result<std::unique_ptr<WorkerPage>> made = WorkerPage::create(
        start.generation, static_cast<int>(start.workers.size()), start.publish_until);
    if (!made) {
        return made.error();
    }
    page_ = std::move(*made);
    if (LifeWatch::is_possible()) {
        watch_ = std::make_unique<LifeWatch>(
            *page_,
            [this, generation = start.generation](LocalRank local_rank, FatalSignal told) {
                on_sign_(generation, local_rank, told);
            },
            on_saves_);
    }
    return {};
}

UniqueFd SharedPage::file() const {
    return UniqueFd(page_ ? fcntl(page_->file(), F_DUPFD_CLOEXEC, 0) : -1);
}

void SharedPage::carry_out(const AskWorkersToLeave& effect) {
    if (is_of(effect.generation)) {
        page_->ask_to_stop(effect.signal, effect.deadline);
    }
}

void SharedPage::carry_out(const AllowPublishing& effect) {
    if (is_of(effect.generation)) {
        page_->allow_publishing(effect.until);
    }
}

bool SharedPage::is_spared(const SignalWorkers& effect, LocalRank local_rank) const {
    // It was asked before this looks: a worker that comes to look only now sees it too.
    return effect.spares_asked && is_of(effect.generation) && page_->has_runtime(local_rank);
}

std::optional<std::uint64_t> SharedPage::progress(Generation generation,
                                                  LocalRank local_rank) const {
    return is_of(generation) ? page_->progress(local_rank) : std::nullopt;
}

std::vector<WorkerMoments> SharedPage::moments() const {
    std::vector<WorkerMoments> workers;
    const auto told = [](Instant at) {
        return at == Instant::min() ? std::nullopt : std::optional(at);
    };
    const auto number = [](std::uint64_t step) {
        return step == kNoProgress ? std::nullopt : std::optional(step);
    };
    for (int i = 0; page_ && i < page_->slot_count(); ++i) {
        const LocalRank local_rank(i);
        const WorkerPage::Moments moments = page_->moments(local_rank);
        workers.push_back({.main = told(moments.main),
                           .group_ready = told(moments.group_ready),
                           .resumed = told(moments.resumed),
                           .first_step = told(moments.first_step),
                           .step = page_->progress(local_rank),
                           .first_number = number(moments.first_number),
                           .last = step_told(page_->pace(local_rank)),
                           .checkpointing = page_->checkpointing(local_rank),
                           .samples = page_->samples(local_rank),
                           .saves = saves_told(page_->saves(local_rank))});
    }
    return workers;
}

std::vector<std::string> SharedPage::checkpoints() const {
    const std::size_t places_max = ReadAheadLimits().read_ahead_places_max;
    std::vector<std::string> places;
    for (int i = 0; page_ && i < page_->slot_count() && places.size() < places_max; ++i) {
        std::string place = page_->checkpoints(LocalRank(i));
        if (!place.empty() && std::find(places.begin(), places.end(), place) == places.end()) {
            places.push_back(std::move(place));
        }
    }
    return places;
}

bool SharedPage::is_of(Generation generation) const {
    return page_ && page_->generation() == generation;
}

}  // namespace ddprun::agent
