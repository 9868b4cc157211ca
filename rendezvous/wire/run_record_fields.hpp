#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "rendezvous/wire/message_fields.hpp"
#include "rendezvous/wire/run_record.hpp"

/// The fields of a run's record, as message_fields.hpp holds those of messages.
namespace ddprun::rdzv {

inline constexpr std::array<std::pair<std::string_view, RecordedPhase>, 4> kRecordedPhaseNames = {{
    {"forming", RecordedPhase::Forming},
    {"running", RecordedPhase::Running},
    {"stopping", RecordedPhase::Stopping},
    {"closed", RecordedPhase::Closed},
}};

void visit_fields(Is<Place> auto& place, auto& visit) {
    visit.name("node", place.node, true);
    visit.number("slots", place.slots, 1, visit.limits().slots_max);
    visit.name("hostname", place.hostname, false);
    visit.name("role", place.role, false);
    visit.name("topology_key", place.topology_key, false);
}

void visit_fields(Is<RecordedNode> auto& node, auto& visit) {
    visit.name("node", node.node, true);
    visit.name("process", node.process, false);
    visit.name("hostname", node.hostname, false);
    visit.number("slots", node.slots, 1, visit.limits().slots_max);
    visit.flag("is_member", node.is_member);
    visit.number("leaving_signal", node.leaving, 0, 127);
}

void visit_fields(Is<RecordedQuarantine> auto& quarantine, auto& visit) {
    visit.name("node", quarantine.node, true);
    visit.name("hostname", quarantine.hostname, false);
    visit.duration("remaining_ms", quarantine.remaining);
    visit.text("why", quarantine.why);
    visit.flag("is_unfit", quarantine.is_unfit);
}

void visit_fields(Is<RunRecord> auto& record, auto& visit) {
    const std::size_t nodes_max = visit.limits().nodes_max;
    visit.name("job", record.job, true);
    visit.name("token", record.token, true);
    visit.object("settings", record.settings);
    visit.duration("age_ms", record.age);
    visit.choice("phase", record.phase, kRecordedPhaseNames);
    visit_generation(visit, record.generation);
    visit.name("digest", record.digest, false);
    visit.object("store", record.store);
    visit.names("admitted", record.admitted, nodes_max * visit.limits().addresses_max);
    visit.objects("places", record.places, nodes_max);
    visit.objects("nodes", record.nodes, nodes_max);
    visit.names("departed", record.departed, nodes_max);
    visit.number("restarts_used", record.restarts_used, 0, kIntMax);
    visit.number("node_losses_used", record.node_losses_used, 0, kIntMax);
    visit_natural(visit, "failed_step", record.failed_step);
    visit.number("failures_at_step", record.failures_at_step, 0, kIntMax);
    visit.objects("quarantined", record.quarantined, nodes_max);
    visit.number("target_nodes", record.target_nodes, 0, kIntMax);
    visit.duration("held_for_ms", record.held_for);
    visit.duration("held_in_all_ms", record.held_in_all);
    visit.name("held_by", record.held_by, false);
    visit.flag("is_prepared", record.is_prepared);
    visit.text("why", record.why);
    visit.object("order", record.order);
    visit.flag("is_failure", record.is_failure);
    visit.names("unfinished", record.unfinished, nodes_max);
    visit.names("lost_nodes", record.lost_nodes, nodes_max);
    visit.text("loss_why", record.loss_why);
    visit.flag("is_explained_by_loss", record.is_explained_by_loss);
    visit.name("ended_by", record.ended_by, false);
    visit.object("verdict", record.verdict);
    visit.objects("timeline", record.timeline, visit.limits().timeline_events_max);
}

}  // namespace ddprun::rdzv
