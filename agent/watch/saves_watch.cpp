#include "agent/watch/saves_watch.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "rendezvous/events/save_figures.hpp"
#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::agent {

namespace {

/// A worker may write any number, and a message has a bound.
Milliseconds milliseconds(Duration time) {
    return std::min(std::chrono::duration_cast<Milliseconds>(time), rdzv::kDurationMax);
}

Milliseconds age(Instant now, Instant at) {
    return milliseconds(std::max(now - at, Duration::zero()));
}

rdzv::SavesSeen seen_of(Instant now, LocalRank local_rank, const SavesTold& told,
                        const WatchLimits& limits) {
    return {.local_rank = local_rank,
            .saved = told.saved,
            .step = told.step,
            .bytes = told.bytes,
            .stall = milliseconds(told.stall),
            .took = milliseconds(told.took),
            .age = age(now, told.saved_at),
            .places = told.places,
            .failed = told.failed,
            .failed_step = told.failed_step,
            .failed_age = age(now, told.failed_at),
            .failed_reason = printable(told.failed_reason, limits.save_reason_columns_max)};
}

}  // namespace

void SavesWatch::begin(Generation generation, Rank base_rank) {
    generation_ = generation;
    base_rank_ = base_rank;
    seen_ = {};
    reported_.reset();
    due_.reset();
}

std::string SavesWatch::behind(const SavesTold& told) const {
    const auto most = static_cast<std::uint64_t>(limits_.saves_late);
    const bool is_behind = !seen_.behind.empty();
    if (is_behind ? told.in_time >= most : told.late < most) {
        return {};
    }
    if (is_behind) {
        return seen_.behind;
    }
    return fmt::format(
        "checkpoints fall behind: {} saves in a row were asked for while the one before was still "
        "being written; the last one took {}, and they are asked for every {}; save less often, "
        "use "
        "a faster disk, or raise disk_every with --memory-checkpoints",
        told.late, rdzv::save_time_text(milliseconds(told.took)),
        rdzv::save_time_text(milliseconds(told.interval)));
}

SavesWatch::News SavesWatch::look(Instant now, const std::vector<WorkerMoments>& workers,
                                  bool have_ended) {
    due_.reset();
    const auto leader = std::find_if(workers.begin(), workers.end(), [](const WorkerMoments& one) {
        return one.saves.has_value();
    });
    if (leader == workers.end()) {
        return {};
    }
    const SavesTold& told = *leader->saves;
    const LocalRank local_rank(static_cast<int>(leader - workers.begin()));
    rdzv::SavesSeen seen = seen_of(now, local_rank, told, limits_);
    seen.behind = behind(told);
    News news{.events = rdzv::save_events(
                  now, generation_, Rank(base_rank_.value() + local_rank.value()), seen_, seen),
              .seen = std::nullopt,
              .line = {}};
    if (news.events.empty()) {
        return {};
    }
    if (!have_ended && reported_ && now < *reported_ + limits_.saves_interval) {
        due_ = *reported_ + limits_.saves_interval;
        return {};
    }
    if (seen.behind != seen_.behind) {
        news.line = seen.behind.empty()
                        ? fmt::format(
                              "checkpoints keep up again: the last {} saves were asked for "
                              "after the one before had ended",
                              told.in_time)
                        : "warning: " + seen.behind;
    }
    reported_ = now;
    seen_ = seen;
    news.seen = std::move(seen);
    return news;
}

}  // namespace ddprun::agent
