#include "rendezvous/core/publish.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "rendezvous/core/run.hpp"
#include "rendezvous/events/event_fields.hpp"
#include "rendezvous/events/save_figures.hpp"

namespace ddprun::rdzv {

namespace {

std::int64_t number(std::size_t count) {
    return static_cast<std::int64_t>(count);
}

bool hears(const Node& node) {
    return node.connection() && node.info.hears_events;
}

/// Group rank 0, or the next node that has --notify. Before a first generation, and when none of
/// the last one is here, any node that has it. Null: no node has it.
const Node* teller(const Run& run, bool is_head_only) {
    for (const Place& place : run.current.places) {
        const auto node = run.nodes.find(place.node);
        if (node != run.nodes.end() && hears(node->second)) {
            return &node->second;
        }
        if (is_head_only) {
            return nullptr;
        }
    }
    const auto any = std::find_if(run.nodes.begin(), run.nodes.end(),
                                  [](const auto& one) { return hears(one.second); });
    return any == run.nodes.end() ? nullptr : &any->second;
}

/// Has people told of what they should know at once.
void notify(Step& step, const Event& event) {
    if (notified_as(event).empty()) {
        return;
    }
    // There may be thousands of spares: none of them is worth a search through all nodes.
    const Node* const node = teller(step.run, event.kind == EventKind::Spare);
    if (node != nullptr) {
        send(step, *node, Happened{notified_text(event, step.options.limits.event_text_bytes_max)});
    }
}

}  // namespace

void publish(Step& step, EventKind kind, std::vector<EventField> fields) {
    Event event{.kind = kind,
                .at = step.now,
                .generation = step.run.current.number,
                .fields = std::move(fields)};
    notify(step, event);
    step.out.add(Publish{std::move(event)});
}

void publish(Step& step, EventKind kind, const Join& node, std::vector<EventField> fields) {
    fields.insert(fields.begin(), {{"host", node.hostname}, {"node", node.node.value()}});
    publish(step, kind, std::move(fields));
}

void publish_failure(Step& step, const TimedFailure& failure) {
    const FailureReport& report = failure.report;
    Event event{.kind = EventKind::Failure,
                .at = failure.at,
                .generation = report.generation,
                .rank = report.rank,
                .step = report.evidence.progress,
                .fields = {{"host", report.hostname},
                           {"node", report.node.value()},
                           {"local_rank", std::int64_t{report.local_rank.value()}}}};
    for (EventField& field : fields_of(report.evidence)) {
        event.fields.push_back(std::move(field));
    }
    step.out.add(Publish{std::move(event)});
}

void publish_finished(Step& step, const Node& node, LocalRank local_rank) {
    const CurrentGeneration& current = step.run.current;
    step.out.add(Publish{Event{.kind = EventKind::Finished,
                               .at = step.now,
                               .generation = current.number,
                               .rank = current.rank_of(node.info.node, local_rank),
                               .fields = {{"host", node.info.hostname}}}});
}

void publish_moment(Step& step, Moment what, const MomentReached& reached) {
    constexpr std::array kKinds = {
        std::pair{Moment::Spawned, EventKind::Spawned},
        std::pair{Moment::Main, EventKind::Main},
        std::pair{Moment::GroupReady, EventKind::GroupReady},
        std::pair{Moment::Resumed, EventKind::Resumed},
        std::pair{Moment::FirstStep, EventKind::FirstStep},
    };
    for (const auto& [moment, kind] : kKinds) {
        if (moment == what) {
            step.out.add(Publish{
                Event{.kind = kind,
                      .at = reached.at,
                      .generation = step.run.current.number,
                      .rank = reached.is_estimated ? std::nullopt : std::optional(reached.last),
                      .step = reached.step,
                      .is_estimated = reached.is_estimated}});
        }
    }
}

void publish_hang(Step& step, const HangSeen& seen) {
    Event event = hang_event(step.now, step.run.current.number, seen);
    notify(step, event);
    step.out.add(Publish{std::move(event)});
}

void publish_saves(Step& step, Rank rank, const SavesSeen& before, const SavesSeen& seen) {
    for (Event& event : save_events(step.now, step.run.current.number, rank, before, seen)) {
        step.out.add(Publish{std::move(event)});
    }
}

void publish_formed(Step& step, const std::string& why) {
    const Run& run = step.run;
    publish(step, EventKind::Formed,
            {{"nodes", number(run.current.places.size())},
             {"workers", std::int64_t{run.current.worker_count()}},
             {"restarts", std::int64_t{run.budgets.restarts_used}},
             {"node_losses", std::int64_t{run.budgets.node_losses_used}},
             {"text", why}});
    for (const NodeId& id : run.nodes.ready()) {
        publish(step, EventKind::Spare, run.nodes.at(id).info);
    }
}

}  // namespace ddprun::rdzv
