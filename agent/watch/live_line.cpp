#include "agent/watch/live_line.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/events/stall.hpp"

namespace ddprun::agent {

namespace {

std::string plural(int count, std::string_view one) {
    return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

std::string rate_text(Duration step) {
    const double rate = 1 / std::chrono::duration<double>(step).count();
    return rate < 10    ? fmt::format("{:.2f} steps/s", rate)
           : rate < 100 ? fmt::format("{:.1f} steps/s", rate)
                        : fmt::format("{:.0f} steps/s", rate);
}

/// Returns nothing if the total number of steps, or the time of one, is not known.
std::optional<Duration> time_left(Instant now, const StepTold& last,
                                  const std::optional<RankPace::Step>& pace) {
    if (!last.total_steps || !pace) {
        return std::nullopt;
    }
    const std::uint64_t steps = *last.total_steps - std::min(*last.total_steps, last.number);
    // The limit of some centuries keeps the clock from overflowing, whatever a program reports.
    const std::chrono::duration<double> whole =
        std::min(std::chrono::duration<double>(pace->whole) * static_cast<double>(steps),
                 std::chrono::duration<double>(1e9));
    const Duration since = std::max(now - last.at, Duration::zero());
    return std::max(std::chrono::duration_cast<Duration>(whole) - since, Duration::zero());
}

}  // namespace

std::string rough_time(Duration time) {
    const std::int64_t whole =
        std::max<std::int64_t>(std::chrono::round<std::chrono::seconds>(time).count(), 0);
    constexpr std::int64_t kMinute = 60;
    constexpr std::int64_t kHour = 60 * kMinute;
    constexpr std::int64_t kDay = 24 * kHour;
    if (whole < kMinute) {
        return fmt::format("{} s", whole);
    }
    if (whole < kHour) {
        return fmt::format("{} min {} s", whole / kMinute, whole % kMinute);
    }
    return whole < kDay ? fmt::format("{} h {} min", whole / kHour, whole % kHour / kMinute)
                        : fmt::format("{} d {} h", whole / kDay, whole % kDay / kHour);
}

void LiveLine::begin(Generation generation, bool is_here, int nodes, int workers) {
    generation_ = generation;
    is_here_ = is_here;
    nodes_ = nodes;
    workers_ = workers;
    pace_ = RankPace(limits_);
}

std::string LiveLine::text(Instant now, const WorkerMoments& rank0, const rdzv::TimeUse& use) {
    has_steps_ = has_steps_ || rank0.last.has_value();
    if (!is_here_ || !has_steps_) {
        return {};
    }
    std::string text = fmt::format("ddprun: generation {} | {}, {}", generation_.value(),
                                   plural(nodes_, "node"), plural(workers_, "worker"));
    if (const std::optional<StepTold>& last = rank0.last) {
        if (!pace_.has_begun() && rank0.first_step && rank0.first_number) {
            pace_.begin(*rank0.first_number, *rank0.first_step, last->first_waited);
        }
        pace_.add(*last);
        const std::optional<RankPace::Step> step = pace_.step();
        text += fmt::format(" | step {}", last->number);
        text += last->total_steps ? fmt::format(" of {}", *last->total_steps) : "";
        const Duration age = now - last->at;
        const bool is_stalled = step && rdzv::is_stalled(age, step->whole, limits_);
        if (is_stalled) {
            text += fmt::format(" | no step for {}", rough_time(age));
        } else if (step) {
            text += " | " + rate_text(step->whole);
        }
        text += last->loss ? fmt::format(" | loss {:.4g}", *last->loss) : "";
        const std::optional<Duration> left =
            is_stalled ? std::nullopt : time_left(now, *last, step);
        if (left) {
            text += fmt::format(" | {} left", rough_time(*left));
        }
    }
    const std::vector<rdzv::Restart> restarts = use.restarts(now);
    if (!restarts.empty()) {
        const rdzv::Restart& newest = restarts.back();
        const std::string ago = rough_time(now - newest.at);
        if (newest.is_over) {
            const int count = static_cast<int>(restarts.size());
            text += fmt::format(" | {}, the last {} ago", plural(count, "restart"), ago);
        } else {
            const bool is_formed = newest.to != Generation();
            text += fmt::format(" | {} for {}", is_formed ? "restarting" : "stopped", ago);
        }
    }
    return text;
}

}  // namespace ddprun::agent
