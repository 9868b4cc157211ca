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

template <>
struct Fields<OperatorOrder> {
    static constexpr std::string_view type = "order";

    template <typename Message, typename Visitor>
    static void visit(Message& order, Visitor& visit) {
        visit.name("job", order.job, true);
        visit.choice("action", order.action, kOperatorActionNames);
        visit.name("node", order.node, false);
        visit.duration("for_ms", order.duration);
        visit.number("nodes", order.nodes, 0, static_cast<int>(visit.limits().nodes_max));
        visit.name("by", order.by, false);
    }
};

template <>
struct Fields<OperatorReply> {
    static constexpr std::string_view type = "ordered";

    template <typename Message, typename Visitor>
    static void visit(Message& reply, Visitor& visit) {
        visit.choice("fault", reply.fault, kOrderFaultNames);
        visit.number("event", reply.event, std::uint64_t{0},
                     std::numeric_limits<std::uint64_t>::max());
        visit.text("text", reply.text);
    }
};

template <>
struct Fields<AskStatus> {
    static constexpr std::string_view type = "ask_status";

    template <typename Message, typename Visitor>
    static void visit(Message& question, Visitor& visit) {
        visit.name("job", question.job, false);
    }
};

template <>
struct Fields<NodeStatus> {
    template <typename Message, typename Visitor>
    static void visit(Message& node, Visitor& visit) {
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
        visit.number("step", node.step, std::uint64_t{0},
                     std::numeric_limits<std::uint64_t>::max());
        visit.number("step_ns", node.step_ns, std::uint64_t{1},
                     std::numeric_limits<std::uint64_t>::max());
        visit.number("memory_bytes", node.memory_bytes, std::uint64_t{0},
                     std::numeric_limits<std::uint64_t>::max());
        visit.number("memory_limit_bytes", node.memory_limit_bytes, std::uint64_t{0},
                     std::numeric_limits<std::uint64_t>::max());
        visit.number("memory_pressure_permille", node.memory_pressure_permille, 0, 1000);
    }
};

template <>
struct Fields<AbsentStatus> {
    template <typename Message, typename Visitor>
    static void visit(Message& node, Visitor& visit) {
        visit.name("node", node.node, true);
        visit.name("hostname", node.hostname, false);
        visit.duration("quarantined_ms", node.quarantined);
        visit.text("quarantine_why", node.quarantine_why);
    }
};

template <>
struct Fields<SlowestStatus> {
    template <typename Message, typename Visitor>
    static void visit(Message& slow, Visitor& visit) {
        visit.number("rank", slow.rank, 0, kIntMax);
        visit.name("node", slow.node, false);
        visit.name("hostname", slow.hostname, false);
        visit.number("cost_permille", slow.cost_permille, 0, 1000);
    }
};

template <>
struct Fields<JobStatus> {
    template <typename Message, typename Visitor>
    static void visit(Message& job, Visitor& visit) {
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
        visit.text("time_text", job.time_text);
    }
};

template <>
struct Fields<StatusReply> {
    static constexpr std::string_view type = "status";

    template <typename Message, typename Visitor>
    static void visit(Message& reply, Visitor& visit) {
        visit.objects("jobs", reply.jobs, visit.limits().jobs_max);
        visit.number("jobs_left_out", reply.jobs_left_out, 0, kIntMax);
    }
};

}  // namespace ddprun::rdzv
