#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <variant>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"

/// Invariants of a run's state after every step, whatever was said to the coordinator. For
/// tests that throw random or hostile inputs at it.
namespace ddprun::rdzv {

/// The rank map and the phase: what is wrong with them; empty if nothing is.
inline std::string place_flaw(const Run& run, const CoordinatorOptions& options) {
    std::set<NodeId> members;
    for (const auto& [id, node] : run.nodes) {
        if (node.standing() == Standing::Member) {
            members.insert(id);
        }
    }
    const auto are_members = [&members](const std::set<NodeId>& nodes) {
        return std::includes(members.begin(), members.end(), nodes.begin(), nodes.end());
    };
    std::set<NodeId> places;
    for (const Place& place : run.current.places) {
        places.insert(place.node);
    }
    if (places.size() != run.current.places.size() ||
        run.current.places.size() > static_cast<std::size_t>(run.settings.max_nodes)) {
        return "a rank map with a node twice, or too large";
    }
    if (std::holds_alternative<Forming>(run.phase) && !members.empty()) {
        return "members while forming";
    }
    const Running* const running = std::get_if<Running>(&run.phase);
    if (running != nullptr &&
        (!are_members(running->unfinished) ||
         !std::includes(places.begin(), places.end(), members.begin(), members.end()))) {
        return "running with others than members";
    }
    const Stopping* const stopping = std::get_if<Stopping>(&run.phase);
    if (stopping != nullptr && (!are_members(stopping->pending) ||
                                stopping->failures.size() > options.limits.failures_kept_max)) {
        return "stopping with others than members, or too many failures kept";
    }
    const Closed* const closed = std::get_if<Closed>(&run.phase);
    if (closed != nullptr &&
        (closed->verdict.exit_code == 0) != (closed->verdict.kind == VerdictKind::Succeeded)) {
        return "an exit code that contradicts the verdict";
    }
    return {};
}

/// The indexes say what the nodes say, and no bound or budget is passed: what is wrong; empty if
/// nothing is.
inline std::string run_flaw(const Run& run, const CoordinatorOptions& options) {
    std::set<NodeId> ready;
    std::set<NodeId> suspects;
    std::size_t connected = 0;
    for (const auto& [id, node] : run.nodes) {
        if (node.standing() == Standing::Ready && node.connection() && !node.leaving()) {
            ready.insert(id);
        }
        if (!node.connection()) {
            suspects.insert(id);
        } else {
            ++connected;
            const auto owner = run.nodes.by_connection().find(*node.connection());
            if (owner == run.nodes.by_connection().end() || owner->second != id) {
                return "a node that its connection does not lead to";
            }
        }
        if (options.has_leases && !run.nodes.leases().contains({node.lease_end(), id})) {
            return "a node without its lease";
        }
    }
    if (ready != run.nodes.ready() || suspects != run.nodes.suspects() ||
        connected != run.nodes.by_connection().size() ||
        run.nodes.leases().size() != (options.has_leases ? run.nodes.size() : 0)) {
        return "an index that does not fit the nodes";
    }
    if (run.budgets.restarts_used > run.settings.max_restarts ||
        (run.settings.max_node_losses >= 0 &&
         run.budgets.node_losses_used > run.settings.max_node_losses)) {
        return "a budget overdrawn";
    }
    if (run.nodes.size() > options.limits.nodes_max ||
        run.departed.size() > options.limits.nodes_max ||
        run.quarantined.size() > options.limits.nodes_max ||
        run.timeline.size() > options.limits.timeline_events_max) {
        return "more is kept than Limits allow";
    }
    return place_flaw(run, options);
}

}  // namespace ddprun::rdzv
