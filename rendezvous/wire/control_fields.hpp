#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/message_fields.hpp"

/// The fields of questions and answers, as message_fields.hpp holds those of messages.
namespace ddprun::rdzv {

inline constexpr std::array<std::pair<std::string_view, JobPhase>, 5> kJobPhaseNames = {{
    {"forming", JobPhase::Forming},
    {"running", JobPhase::Running},
    {"stopping", JobPhase::Stopping},
    {"closed", JobPhase::Closed},
    {"adopting", JobPhase::Adopting},
}};

inline constexpr std::array<std::pair<std::string_view, NodeStanding>, 5> kNodeStandingNames = {{
    {"member", NodeStanding::Member},
    {"ready", NodeStanding::Ready},
    {"spare", NodeStanding::Spare},
    {"unready", NodeStanding::Unready},
    {"preparing", NodeStanding::Preparing},
}};

inline constexpr std::array<std::pair<std::string_view, OperatorAction>, 8> kOperatorActionNames = {
    {
        {"drain", OperatorAction::Drain},
        {"restart", OperatorAction::Restart},
        {"hold", OperatorAction::Hold},
        {"stop", OperatorAction::Stop},
        {"grow", OperatorAction::Grow},
        {"shrink", OperatorAction::Shrink},
        {"quarantine", OperatorAction::Quarantine},
        {"release", OperatorAction::Release},
    }};

inline constexpr std::array<std::pair<std::string_view, OrderFault>, 4> kOrderFaultNames = {{
    {"none", OrderFault::None},
    {"invalid", OrderFault::Invalid},
    {"unknown", OrderFault::Unknown},
    {"conflict", OrderFault::Conflict},
}};

void visit_fields(Is<OperatorOrder> auto& order, auto& visit) {
    visit.name("job", order.job, true);
    visit.choice("action", order.action, kOperatorActionNames);
    visit.name("node", order.node, false);
    visit.duration("for_ms", order.duration);
    visit.number("nodes", order.nodes, 0, static_cast<int>(visit.limits().nodes_max));
    visit.name("by", order.by, false);
}

void visit_fields(Is<OperatorReply> auto& reply, auto& visit) {
    visit.choice("fault", reply.fault, kOrderFaultNames);
    visit_natural(visit, "event", reply.event);
    visit.text("text", reply.text);
}

void visit_fields(Is<AskStatus> auto& question, auto& visit) {
    visit.name("job", question.job, false);
}

void visit_fields(Is<NodeStatus> auto& node, auto& visit) {
    visit.name("node", node.node, true);
    visit.name("hostname", node.hostname, false);
    visit.choice("standing", node.standing, kNodeStandingNames);
    visit.number("group_rank", node.group_rank, 0, kIntMax);
    visit.number("base_rank", node.base_rank, 0, kIntMax);
    visit.number("slots", node.slots, 1, visit.limits().slots_max);
    visit.number("finished", node.finished, 0, kIntMax);
    visit.flag("is_connected", node.is_connected);
    visit.flag("is_suspect", node.is_suspect);
    visit.duration("last_heard_ms", node.last_heard);
    visit.duration("lease_left_ms", node.lease_left);
    visit.number("leaving_signal", node.leaving, 0, 127);
    visit.duration("quarantined_ms", node.quarantined);
    visit.text("quarantine_why", node.quarantine_why);
    visit.name("containment", node.containment, false);
    visit_natural(visit, "step", node.step);
    visit_natural(visit, "step_ns", node.step_ns, 1);
    visit_natural(visit, "memory_bytes", node.memory_bytes);
    visit_natural(visit, "memory_limit_bytes", node.memory_limit_bytes);
    visit.number("memory_pressure_permille", node.memory_pressure_permille, 0, 1000);
    visit.text("log_lost", node.log_lost);
}

void visit_fields(Is<AbsentStatus> auto& node, auto& visit) {
    visit.name("node", node.node, true);
    visit.name("hostname", node.hostname, false);
    visit.duration("quarantined_ms", node.quarantined);
    visit.text("quarantine_why", node.quarantine_why);
}

void visit_fields(Is<SlowestStatus> auto& slow, auto& visit) {
    visit.number("rank", slow.rank, 0, kIntMax);
    visit.name("node", slow.node, false);
    visit.name("hostname", slow.hostname, false);
    visit.number("cost_permille", slow.cost_permille, 0, 1000);
}

void visit_fields(Is<StallStatus> auto& stall, auto& visit) {
    visit.duration("age_ms", stall.age);
    visit.number("rank", stall.rank, 0, kIntMax);
    visit.name("hostname", stall.hostname, false);
    visit.text("text", stall.text);
}

void visit_fields(Is<JobStatus> auto& job, auto& visit) {
    visit.name("job", job.job, true);
    visit.choice("phase", job.phase, kJobPhaseNames);
    visit.duration("age_ms", job.age);
    visit.duration("in_phase_ms", job.in_phase);
    visit_generation(visit, job.generation);
    visit.text("waits_for", job.waits_for);
    visit.text("not_durable", job.not_durable);
    visit.number("min_nodes", job.min_nodes, 1, kIntMax);
    visit.number("max_nodes", job.max_nodes, 1, kIntMax);
    visit.text("nnodes", job.nnodes);
    visit.number("world_size", job.world_size, 0, kIntMax);
    visit.number("restarts_used", job.restarts_used, 0, kIntMax);
    visit.number("max_restarts", job.max_restarts, 0, kIntMax);
    visit.number("node_losses_used", job.node_losses_used, 0, kIntMax);
    visit.number("max_node_losses", job.max_node_losses, -1, kIntMax);
    visit.number("target_nodes", job.target_nodes, 0, kIntMax);
    visit.duration("held_ms", job.held);
    visit.name("held_by", job.held_by, false);
    visit.objects("nodes", job.nodes, visit.limits().nodes_max);
    visit.number("nodes_left_out", job.nodes_left_out, 0, kIntMax);
    visit.objects("absent", job.absent, visit.limits().nodes_max);
    visit.number("absent_left_out", job.absent_left_out, 0, kIntMax);
    visit.objects("events", job.events, visit.limits().timeline_events_max);
    visit.number("events_left_out", job.events_left_out, 0, kIntMax);
    visit.number("exit_code", job.exit_code, 0, 255);
    visit.text("verdict", job.verdict);
    visit.object("slow", job.slow);
    visit.object("stall", job.stall);
    visit.text("time_text", job.time_text);
    visit.text("checkpoint_text", job.checkpoint_text);
}

void visit_fields(Is<StatusReply> auto& reply, auto& visit) {
    visit.objects("jobs", reply.jobs, visit.limits().jobs_max);
    visit.number("jobs_left_out", reply.jobs_left_out, 0, kIntMax);
}

}  // namespace ddprun::rdzv
