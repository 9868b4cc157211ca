#include "rendezvous/core/status.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "base/overloaded.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

namespace {

Milliseconds between(Instant from, Instant to) {
    return std::max(Milliseconds(0), std::chrono::duration_cast<Milliseconds>(to - from));
}

void describe_phase(const Phase& current, Instant now, JobStatus& status) {
    std::visit(Overloaded{
                   [&](const Forming& phase) {
                       status.phase = JobPhase::Forming;
                       status.in_phase = between(phase.since, now);
                   },
                   [&](const Running& phase) {
                       status.phase = JobPhase::Running;
                       status.in_phase = between(phase.since, now);
                   },
                   [&](const Stopping& phase) {
                       status.phase = JobPhase::Stopping;
                       status.in_phase = between(phase.since, now);
                   },
                   [&](const Closed& phase) {
                       status.phase = JobPhase::Closed;
                       status.in_phase = between(phase.at, now);
                       status.exit_code = phase.verdict.exit_code;
                       status.verdict = phase.verdict.text;
                   },
                   [&](const Adopting&) {
                       status.phase = JobPhase::Adopting;
                       status.in_phase = status.age;
                   },
                   [&](const Restored& phase) {
                       std::visit(
                           [&](const auto& recorded) { describe_phase(recorded, now, status); },
                           phase.recorded);
                       status.in_phase = between(phase.since, now);
                   },
               },
               current);
}

NodeStanding standing_of(const Run& run, const Node& node) {
    switch (node.standing()) {
        case Standing::Member:
            return NodeStanding::Member;
        case Standing::Unready:
            return NodeStanding::Unready;
        case Standing::Preparing:
            return NodeStanding::Preparing;
        case Standing::Ready:
            break;
    }
    const bool is_full =
        !std::holds_alternative<Forming>(run.phase) && run.current.places.size() >= maximum(run);
    return is_full ? NodeStanding::Spare : NodeStanding::Ready;
}

NodeStatus status_of_node(const Run& run, const NodeId& id, const Node& node, Instant now) {
    NodeStatus status;
    status.node = id;
    status.hostname = node.info.hostname;
    status.standing = standing_of(run, node);
    status.slots = node.info.slots;
    status.finished = static_cast<int>(node.finished.size());
    status.is_connected = node.connection().has_value();
    status.is_suspect = run.nodes.suspects().contains(id);
    status.last_heard = between(node.last_heard, now);
    status.lease_left = between(now, node.lease_end());
    status.leaving = node.leaving();
    status.containment = node.info.containment;
    if (const auto found = run.quarantined.find(id);
        found != run.quarantined.end() && found->second.until > now) {
        status.quarantined = between(now, found->second.until);
        status.quarantine_why = found->second.why;
    }
    return status;
}

/// Members get their ranks; returns the size of the world.
int give_ranks(const Run& run, std::map<NodeId, NodeStatus>& nodes) {
    int base_rank = 0;
    for (std::size_t group_rank = 0; group_rank < run.current.places.size(); ++group_rank) {
        const Place& place = run.current.places[group_rank];
        const auto node = nodes.find(place.node);
        if (node != nodes.end() && node->second.standing == NodeStanding::Member) {
            node->second.group_rank = static_cast<int>(group_rank);
            node->second.base_rank = base_rank;
        }
        base_rank += place.slots;
    }
    return base_rank;
}

/// Those that are left out and not here, which no other list has.
void describe_absent(const Run& run, Instant now, std::size_t most, JobStatus& status) {
    for (const auto& [id, one] : run.quarantined) {
        if (one.until <= now || run.nodes.contains(id)) {
            continue;
        }
        if (status.absent.size() >= most) {
            ++status.absent_left_out;
            continue;
        }
        status.absent.push_back(AbsentStatus{.node = id,
                                             .hostname = one.hostname,
                                             .quarantined = between(now, one.until),
                                             .quarantine_why = one.why});
    }
}

bool needs_attention(const NodeStatus& node) {
    return !node.is_connected || node.is_suspect || node.leaving ||
           node.quarantined > Milliseconds(0) || node.standing == NodeStanding::Unready;
}

bool is_listed_before(const NodeStatus& left, const NodeStatus& right) {
    if (left.group_rank.has_value() != right.group_rank.has_value()) {
        return left.group_rank.has_value();
    }
    return left.group_rank < right.group_rank;
}

}  // namespace

JobStatus status_of(const JobId& job, const Run& run, Instant now, const StatusExtent& extent) {
    JobStatus status;
    status.job = job;
    status.age = between(run.opened_at, now);
    describe_phase(run.phase, now, status);
    status.generation = run.current.number;
    status.waits_for = explain_run(run, now);
    status.not_durable = run.not_durable;
    status.min_nodes = run.settings.min_nodes;
    status.max_nodes = run.settings.max_nodes;
    status.nnodes = nnodes_of(run.settings);
    status.restarts_used = run.budgets.restarts_used;
    status.max_restarts = run.settings.max_restarts;
    status.node_losses_used = run.budgets.node_losses_used;
    status.max_node_losses = run.settings.max_node_losses;
    status.target_nodes = run.target_nodes.value_or(0);
    if (is_held(run, now)) {
        status.held = between(now, run.hold->until);
        status.held_by = run.hold->by;
    }
    std::map<NodeId, NodeStatus> nodes;
    for (const auto& [id, node] : run.nodes) {
        nodes.emplace(id, status_of_node(run, id, node, now));
    }
    status.world_size = give_ranks(run, nodes);
    for (auto& [id, node] : nodes) {
        status.nodes.push_back(std::move(node));
    }
    if (status.nodes.size() > extent.nodes_max) {
        std::stable_partition(status.nodes.begin(), status.nodes.end(), needs_attention);
        status.nodes_left_out = static_cast<int>(status.nodes.size() - extent.nodes_max);
        status.nodes.resize(extent.nodes_max);
    }
    std::stable_sort(status.nodes.begin(), status.nodes.end(), is_listed_before);
    describe_absent(run, now, extent.nodes_max - status.nodes.size(), status);
    const std::size_t events = std::min(run.timeline.size(), extent.events_max);
    status.events.assign(run.timeline.end() - static_cast<std::ptrdiff_t>(events),
                         run.timeline.end());
    status.events_left_out = static_cast<int>(run.timeline.size() - events);
    return status;
}

}  // namespace ddprun::rdzv
