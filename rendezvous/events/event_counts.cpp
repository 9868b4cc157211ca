#include "rendezvous/events/event_counts.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ddprun::rdzv {

namespace {

/// In the order in which a restart comes to them, behind the first two.
constexpr std::array<std::pair<EventKind, std::string_view>, 5> kWays{{
    {EventKind::Spawned, "spawn"},
    {EventKind::Main, "start_programs"},
    {EventKind::GroupReady, "connect"},
    {EventKind::Resumed, "resume"},
    {EventKind::FirstStep, "first_step"},
}};

}  // namespace

void DurationHistogram::observe(Duration took) {
    const double seconds = std::max(std::chrono::duration<double>(took).count(), 0.0);
    for (std::size_t i = 0; i < kBoundsSeconds.size(); ++i) {
        at_most_[i] += seconds <= kBoundsSeconds[i] ? 1 : 0;
    }
    ++count_;
    sum_seconds_ += seconds;
}

void EventCounts::take(const Event& event) {
    switch (event.kind) {
        case EventKind::Failure:
            ++failures_;
            note_end(event.at);
            break;
        case EventKind::Stop:
            cause_ = text_of(event, "cause");
            note_end(event.at);
            break;
        case EventKind::Lost:
            ++nodes_lost_;
            note_end(event.at);
            break;
        case EventKind::Empty:
            emptied_ = std::max(emptied_.value_or(event.at), event.at);
            break;
        case EventKind::Formed:
            form(event);
            break;
        case EventKind::Refused:
            ++refusals_;
            break;
        case EventKind::LinkDown:
            ++cut_off_;
            break;
        case EventKind::HeldUp:
            ++hold_ups_;
            break;
        default:
            for (const auto& [kind, phase] : kWays) {
                if (kind == event.kind) {
                    reach(phase, event.at);
                }
            }
            break;
    }
}

/// A failure is dated back to when it was known; what ends a generation may be told twice.
void EventCounts::note_end(Instant at) {
    if (has_formed_) {
        ended_ = std::min(ended_.value_or(at), at);
        reached_.reset();
    }
}

void EventCounts::form(const Event& event) {
    if (has_formed_) {
        ++restarts_[cause_.empty() ? "lost" : cause_];
    }
    reached_.reset();
    if (ended_) {
        reached_ = *ended_;
        reach("stop", std::clamp(emptied_.value_or(*ended_), *ended_, std::max(event.at, *ended_)));
        reach("form", event.at);
    }
    has_formed_ = true;
    cause_.clear();
    ended_.reset();
    emptied_.reset();
    last_phase_ = {};
}

/// Each phase counts once in a restart.
void EventCounts::reach(std::string_view phase, Instant at) {
    if (reached_ && phase != last_phase_) {
        phases_[phase].observe(at - *reached_);
        reached_ = std::max(*reached_, at);
        last_phase_ = phase;
    }
}

}  // namespace ddprun::rdzv
