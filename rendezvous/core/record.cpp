#include "rendezvous/core/record.hpp"

#include <algorithm>
#include <chrono>
#include <variant>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "rendezvous/core/generation.hpp"
#include "rendezvous/core/restored.hpp"
#include "rendezvous/core/stopping.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

namespace {

std::vector<std::string> values_of(const std::set<NodeId>& ids) {
    std::vector<std::string> values;
    for (const NodeId& id : ids) {
        values.push_back(id.value());
    }
    return values;
}

std::set<NodeId> ids_of(const std::vector<std::string>& values) {
    std::set<NodeId> ids;
    for (const std::string& value : values) {
        ids.emplace(value);
    }
    return ids;
}

void record_phase(const Forming& forming, RunRecord& record) {
    record.phase = RecordedPhase::Forming;
    record.why = forming.why;
}

void record_phase(const Running& running, RunRecord& record) {
    record.phase = RecordedPhase::Running;
    record.unfinished = values_of(running.unfinished);
}

void record_phase(const Stopping& stopping, RunRecord& record) {
    record.phase = RecordedPhase::Stopping;
    record.order = stopping.order;
    record.is_failure = stopping.cause == StopCause::Failure;
    record.unfinished = values_of(stopping.unfinished);
    record.lost_nodes = stopping.lost_nodes;
    record.loss_why = stopping.loss_why;
    record.is_explained_by_loss = stopping.is_explained_by_loss;
    record.ended_by = stopping.ended_by;
}

void record_phase(const Closed& closed, RunRecord& record) {
    record.phase = RecordedPhase::Closed;
    record.verdict = closed.verdict;
}

/// Restoring changed nothing in the state that is kept for nodes that may come back.
void record_phase(const Restored& restored, RunRecord& record) {
    std::visit([&record](const auto& recorded) { record_phase(recorded, record); },
               restored.recorded);
}

/// Until it is known which generation goes on there is nothing to record.
void record_phase(const Adopting& /*adopting*/, RunRecord& /*record*/) {}

/// The nodes that are waited for. Those whose ranks have all finished and that died since are not.
void restore_nodes(const RunRecord& record, const Limits& limits, Instant now, Run& run) {
    std::map<NodeId, const Place*> places;
    for (const Place& place : record.places) {
        places[place.node] = &place;
    }
    for (const RecordedNode& recorded : record.nodes) {
        Node& node = run.nodes.add(recorded.node);
        node.info.job = record.job;
        node.info.node = recorded.node;
        node.info.process = recorded.process;
        node.info.hostname = recorded.hostname;
        node.info.slots = recorded.slots;
        node.info.settings = record.settings;
        run.slots_max = std::max(run.slots_max, recorded.slots);
        if (const auto place = places.find(recorded.node); place != places.end()) {
            node.info.role = place->second->role;
            node.info.topology_key = place->second->topology_key;
        }
        node.joined_as = ++run.joins;
        node.last_heard = now;
        run.nodes.set_standing(recorded.node,
                               recorded.is_member ? Standing::Member : Standing::Ready);
        if (recorded.leaving) {
            run.nodes.set_leaving(recorded.node, *recorded.leaving);
        }
        run.nodes.promise_lease(recorded.node, now + limits.reconnect_grace);
    }
}

std::variant<Forming, Running, Stopping> phase_of(const RunRecord& record, const Limits& limits,
                                                  Instant now) {
    if (record.phase == RecordedPhase::Forming) {
        return Forming{.since = now,
                       .give_up_at = now + record.settings.join_timeout,
                       .patience_end = {},
                       .not_before = {},
                       .why = record.why};
    }
    if (record.phase == RecordedPhase::Running) {
        return Running{.since = now, .unfinished = ids_of(record.unfinished)};
    }
    DDP_CHECK(record.phase == RecordedPhase::Stopping);
    Stopping stopping;
    stopping.cause = record.is_failure ? StopCause::Failure : record.order->cause;
    stopping.since = now;
    stopping.give_up_at = now + time_to_stop(*record.order, limits) + limits.reconnect_grace;
    stopping.order = *record.order;
    stopping.unfinished = ids_of(record.unfinished);
    stopping.lost_nodes = record.lost_nodes;
    stopping.loss_why = record.loss_why;
    stopping.is_explained_by_loss = record.is_explained_by_loss;
    stopping.ended_by = record.ended_by;
    for (const RecordedNode& node : record.nodes) {
        if (node.is_member) {
            stopping.pending.insert(node.node);
        }
    }
    return stopping;
}

}  // namespace

RunRecord record_of(const JobId& job, const Run& run, Instant now) {
    RunRecord record;
    record.job = job;
    record.token = run.token;
    record.settings = run.settings;
    record.age = std::chrono::duration_cast<Milliseconds>(now - run.opened_at);
    record.generation = run.current.number;
    record.digest = run.current.digest;
    record.store = run.current.store;
    record.admitted = run.current.admitted;
    record.places = run.current.places;
    for (const auto& [id, node] : run.nodes) {
        record.nodes.push_back(RecordedNode{.node = id,
                                            .process = node.info.process,
                                            .hostname = node.info.hostname,
                                            .slots = node.info.slots,
                                            .is_member = node.is_member(),
                                            .leaving = node.leaving()});
    }
    record.departed = values_of(run.departed);
    record.restarts_used = run.budgets.restarts_used;
    record.node_losses_used = run.budgets.node_losses_used;
    record.failed_step = run.budgets.failed_step;
    record.failures_at_step = run.budgets.failures_at_step;
    for (const auto& [id, one] : run.quarantined) {
        if (one.until > now) {
            record.quarantined.push_back(RecordedQuarantine{
                .node = id,
                .hostname = one.hostname,
                .remaining = std::chrono::duration_cast<Milliseconds>(one.until - now),
                .why = one.why,
                .is_unfit = one.is_unfit});
        }
    }
    record.target_nodes = run.target_nodes.value_or(0);
    if (is_held(run, now)) {
        record.held_for = std::chrono::duration_cast<Milliseconds>(run.hold->until - now);
        record.held_in_all = run.hold->asked;
        record.held_by = run.hold->by;
    }
    record.is_prepared = run.preparation.is_done;
    record.timeline = run.timeline;
    std::visit([&record](const auto& phase) { record_phase(phase, record); }, run.phase);
    return record;
}

std::string flaw_of(const RunRecord& record) {
    std::set<NodeId> members;
    std::set<NodeId> nodes;
    for (const RecordedNode& node : record.nodes) {
        nodes.insert(node.node);
        if (node.is_member) {
            members.insert(node.node);
        }
    }
    std::set<NodeId> places;
    for (const Place& place : record.places) {
        places.insert(place.node);
    }
    const auto contains = [](const std::set<NodeId>& all, const std::set<NodeId>& some) {
        return std::includes(all.begin(), all.end(), some.begin(), some.end());
    };
    const std::set<NodeId> unfinished = ids_of(record.unfinished);
    const bool is_running = record.phase == RecordedPhase::Running;
    const bool is_stopping = record.phase == RecordedPhase::Stopping;
    if (nodes.size() != record.nodes.size() || places.size() != record.places.size()) {
        return "it names a node twice";
    }
    if (!are_sizes_sound(record.settings) ||
        places.size() > static_cast<std::size_t>(record.settings.max_nodes)) {
        return "its rank map does not fit --nnodes";
    }
    if (record.target_nodes != 0 && !is_size(record.settings, record.target_nodes)) {
        return "its target is no size of --nnodes";
    }
    if (record.restarts_used > record.settings.max_restarts ||
        (record.settings.max_node_losses >= 0 &&
         record.node_losses_used > record.settings.max_node_losses)) {
        return "it has used more than its budget";
    }
    if ((is_running || is_stopping) &&
        (members.empty() || !contains(places, members) || record.generation == Generation())) {
        return "its members do not fit its rank map";
    }
    if (is_running && (unfinished.empty() || !contains(members, unfinished))) {
        return "it runs and nobody is left to finish";
    }
    if (record.phase == RecordedPhase::Forming && !members.empty()) {
        return "it has members and no generation";
    }
    if (is_stopping != record.order.has_value() ||
        (record.phase == RecordedPhase::Closed) != record.verdict.has_value()) {
        return "its phase and what was decided do not fit";
    }
    return {};
}

Budgets budgets_of(const RunRecord& record) {
    return {.restarts_used = record.restarts_used,
            .node_losses_used = record.node_losses_used,
            .failed_step = record.failed_step,
            .failures_at_step = record.failures_at_step};
}

std::unique_ptr<Run> run_of(const RunRecord& record, const Limits& limits, Instant now) {
    auto run = std::make_unique<Run>();
    run->token = record.token;
    run->settings = record.settings;
    run->opened_at = now - record.age;
    run->current.started_at = now - kLongAgo;
    run->current.number =
        DDP_RULE(record.generation, GenerationReused,
                 record.phase == RecordedPhase::Forming && record.generation != Generation()
                     ? Generation(record.generation.value() - 1)
                     : record.generation);
    run->current.digest = record.digest;
    run->current.store = record.store;
    run->current.admitted = record.admitted;
    run->current.places = record.places;
    run->departed = ids_of(record.departed);
    run->budgets = DDP_RULE(budgets_of(record), RestoredRunForgetsBudgets, Budgets());
    for (const RecordedQuarantine& one : record.quarantined) {
        run->quarantined.put(one.node, Quarantine{.until = now + one.remaining,
                                                  .hostname = one.hostname,
                                                  .why = one.why,
                                                  .is_unfit = one.is_unfit});
    }
    if (record.target_nodes != 0) {
        run->target_nodes = record.target_nodes;
    }
    if (DDP_RULE(record.held_for > Milliseconds(0), HoldForgottenByDaemon, false)) {
        run->hold =
            Hold{.until = now + record.held_for, .asked = record.held_in_all, .by = record.held_by};
    }
    run->preparation.is_done = record.is_prepared;
    run->timeline = record.timeline;
    run->current.write_rows(run->settings, run->budgets);
    restore_nodes(record, limits, now, *run);
    if (record.phase != RecordedPhase::Closed) {
        run->phase = restored_at(now, phase_of(record, limits, now), limits);
        return run;
    }
    // The verdict is kept: nodes that come late are told.
    run->phase = Closed{.verdict = *record.verdict, .at = now};
    run->returns_until = now + limits.reconnect_grace;
    run->doubt.until = run->returns_until;
    for (const auto& [id, node] : run->nodes) {
        run->nodes.set_lease(id, node.lease_end());
    }
    return run;
}

}  // namespace ddprun::rdzv
