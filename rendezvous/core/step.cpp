#include "rendezvous/core/step.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.hpp"
#include "base/overloaded.hpp"
#include "base/planted_bug.hpp"

namespace ddprun::rdzv {

namespace {

/// False inside a single-node ddprun, and before there is anything to lose.
bool is_recorded(const Step& step) {
    return step.options.has_leases && is_job_prepared(step.run);
}

template <typename... Phases>
bool is_one_of(const Phase& phase) {
    return (std::holds_alternative<Phases>(phase) || ...);
}

/// Forming follows itself when a run is opened.
bool may_follow(const Phase& from, const Phase& next) {
    return std::visit(
        Overloaded{
            [&](const Forming&) { return is_one_of<Forming, Running, Closed, Adopting>(next); },
            [&](const Running&) { return is_one_of<Stopping, Closed, Adopting>(next); },
            [&](const Stopping&) { return is_one_of<Forming, Closed, Adopting>(next); },
            [](const Closed&) { return false; },
            [&](const Adopting&) { return is_one_of<Forming, Running>(next); },
            [&](const Restored&) { return is_one_of<Forming, Running, Stopping, Adopting>(next); },
        },
        from);
}

}  // namespace

void become(Run& run, Phase next) {
    DDP_CHECK(may_follow(run.phase, next), run.phase.index(), next.index());
    run.phase = std::move(next);
}

void trace(Step& step, std::string text) {
    step.out.add(Trace{std::move(text)});
}

void note(Step& step, std::string text) {
    std::vector<TimelineEvent>& timeline = step.run.timeline;
    const std::size_t most = step.options.limits.timeline_events_max;
    if (timeline.size() >= most) {
        // How it began and how it ended matter most.
        timeline.erase(timeline.begin() + static_cast<std::ptrdiff_t>(most / 2));
        // The reader sees the gap.
        constexpr std::string_view kGap = "… ";
        if (most / 2 < timeline.size() && !timeline[most / 2].text.starts_with(kGap)) {
            timeline[most / 2].text.insert(0, kGap);
        }
    }
    const auto at = std::chrono::duration_cast<Milliseconds>(step.now - step.run.opened_at);
    timeline.push_back(TimelineEvent{at, text});
    trace(step, std::move(text));
}

void amend_note(Step& step, const std::string& text, const std::string& now) {
    std::vector<TimelineEvent>& timeline = step.run.timeline;
    const auto found =
        std::find_if(timeline.rbegin(), timeline.rend(),
                     [&text](const TimelineEvent& event) { return event.text == text; });
    if (found != timeline.rend()) {
        found->text = now;
    } else {
        note(step, now);
    }
}

void send(Step& step, const Node& node, RendezvousMessage message) {
    if (node.connection()) {
        step.out.add(Send{*node.connection(), std::move(message)});
    }
}

void write_behind(Step& step) {
    if (is_recorded(step)) {
        step.out.record = std::max(step.out.record, RecordWrite::Behind);
    }
}

void await_record(Step& step) {
    if (is_recorded(step)) {
        step.out.record =
            std::max(step.out.record,
                     DDP_RULE(RecordWrite::Awaited, ToldBeforeDurable, RecordWrite::Behind));
    }
}

}  // namespace ddprun::rdzv
