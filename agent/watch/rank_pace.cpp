#include "agent/watch/rank_pace.hpp"

#include <algorithm>

namespace ddprun::agent {

void RankPace::begin(std::uint64_t number, Instant at, std::optional<Duration> waited) {
    first_ = Sample{.number = number, .at = at, .waited = waited};
}

void RankPace::add(const StepTold& told) {
    if (!first_ || told.number <= first_->number || told.at <= first_->at) {
        return;
    }
    if (!samples_.empty() && told.at <= samples_.back().at) {
        return;
    }
    // Seen more often than is worth keeping, the newest takes the place of the one before.
    const Duration apart = limits_.pace_window / static_cast<int>(limits_.pace_samples_max - 2);
    const std::size_t count = samples_.size();
    if (count >= 2 && samples_[count - 1].at - samples_[count - 2].at < apart) {
        samples_.pop_back();
    }
    samples_.push_back({.number = told.number, .at = told.at, .waited = told.waited});
    // The oldest that is kept is the newest that is a window old.
    while (samples_.size() > 2 && samples_[1].at <= told.at - limits_.pace_window) {
        samples_.pop_front();
    }
}

std::optional<RankPace::Step> RankPace::step() const {
    if (samples_.empty()) {
        return std::nullopt;
    }
    const Sample& last = samples_.back();
    const bool has_window =
        samples_.size() > 1 && samples_.front().at <= last.at - limits_.pace_window;
    const Sample& from = has_window ? samples_.front() : *first_;
    if (last.number <= from.number) {
        return std::nullopt;
    }
    const auto steps = static_cast<Duration::rep>(last.number - from.number);
    Step step{.whole = std::max((last.at - from.at) / steps, Duration(1)), .own = std::nullopt};
    if (last.waited) {
        // A worker that reported no wait until then had not waited.
        const Duration waited = (*last.waited - from.waited.value_or(Duration::zero())) / steps;
        step.own = std::clamp(step.whole - waited, Duration::zero(), step.whole);
    }
    return step;
}

}  // namespace ddprun::agent
