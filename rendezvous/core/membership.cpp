#include "rendezvous/core/membership.hpp"

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/preparing.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/silence.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/core/stopping.hpp"

namespace ddprun::rdzv {

namespace {

void remember_departed(Run& run, const Limits& limits, const NodeId& id) {
    if (run.departed.size() >= limits.nodes_max) {
        run.departed.erase(run.departed.begin());
    }
    run.departed.insert(id);
}

/// The phase handles the loss; without a live generation it is ignored.
void member_lost(Step& step, const Node& node, Instant died_at, const std::string& how) {
    if (const Running* running = std::get_if<Running>(&step.run.phase)) {
        member_lost(step, *running, node, died_at, how);
    } else if (Stopping* stopping = std::get_if<Stopping>(&step.run.phase)) {
        member_lost(step, *stopping, node, died_at, how);
    }
}

void lose(Step& step, const NodeId& id, Instant died_at, const std::string& how) {
    Run& run = step.run;
    const Node node = run.nodes.remove(id);
    if (run.preparation.by == id) {
        run.preparation.by.reset();  // another ddprun on this node has done nothing yet
    }
    if (node.connection()) {
        depart(step, *node.connection(), id);
    }
    if (is_closed(run)) {
        return;
    }
    note(step, fmt::format("node {} {}", node.info.hostname, how));
    publish(step, EventKind::Lost, node.info, {{"text", how}});
    if (node.is_member()) {
        run.lost[id] = how;
        member_lost(step, node, died_at, how);
    }
    if (node.leaving()) {
        close_if_deserted(step, "stopped: every node was told to leave");
    }
}

}  // namespace

Node* current_member(Run& run, ConnectionId connection, Generation generation) {
    Node* node = run.nodes.speaking_on(connection);
    const bool is_current = DDP_RULE(generation == run.current.number, StaleReportAccepted, true);
    return node != nullptr && is_current && node->is_member() ? node : nullptr;
}

void depart(Step& step, ConnectionId connection, const NodeId& id) {
    const JobSettings& settings = step.run.settings;
    const Limits& limits = step.options.limits;
    const Instant until = step.now + settings.shutdown_timeout + settings.failure_grace +
                          limits.unkillable_after + limits.stop_slack;
    step.run.departing.add(connection, id, until);
}

void drop_connection(Step& step, const Node& node, const std::string& why) {
    if (!node.connection()) {
        return;
    }
    const ConnectionId connection = *node.connection();
    step.run.nodes.cut_off(node.info.node);
    step.run.departing.erase(connection);
    step.out.add(CloseConnection{connection, why});
}

void beat(Step& step, ConnectionId connection, const Beat& message) {
    Node* node = step.run.nodes.speaking_on(connection);
    if (node == nullptr) {
        return;
    }
    DDP_RULE(renew_lease(step, *node), LeaseNotRenewed, void());
    send(step, *node, Acknowledge{message.sequence});
}

void told_to_leave(Step& step, Node& node, const Leave& message) {
    if (node.leaving()) {
        return;
    }
    step.run.nodes.set_leaving(node.info.node, message.signal);
    note(step,
         fmt::format("node {} was told to leave (signal {})", node.info.hostname, message.signal));
    publish(step, EventKind::Leave, node.info,
            {{"signal", std::int64_t{message.signal}},
             {"signal_name", std::string(signal_name(message.signal))}});
}

void fenced_node_emptied(Step& step, Node& node, const Stopped& message) {
    if (!node.info.held || node.info.held->generation != message.generation) {
        return;
    }
    const NodeId id = node.info.node;
    node.info.store = message.store;
    node.info.held.reset();
    step.run.nodes.set_standing(id, Standing::Ready);
    DDP_PROBE(fenced_node_emptied);
    trace(step, fmt::format("node {} is empty", node.info.hostname));
    explain_soon(step);
    if (node.leaving() && !is_closed(step.run)) {
        release(step, id);
    }
}

void unkillable(Step& step, ConnectionId connection, const Unkillable& message) {
    const Node* node = step.run.nodes.speaking_on(connection);
    if (node == nullptr) {
        return;
    }
    const bool is_of_fenced = node->standing() == Standing::Unready && node->info.held &&
                              node->info.held->generation == message.generation;
    if (is_of_fenced || current_member(step.run, connection, message.generation) != nullptr) {
        DDP_PROBE(unkillable_node_lost);
        lose_node(step, NodeId(node->info.node), "has a worker that cannot be killed");
    }
}

void release(Step& step, const NodeId& id) {
    Run& run = step.run;
    const Node& node = run.nodes.at(id);
    if (run.nodes.size() == 1 && !is_closed(run)) {
        await_record(
            step);  // the last one to go ends the run: no node would come back to an older one
    }
    send(step, node, Released{});
    trace(step, fmt::format("node {} released", node.info.hostname));
    publish(step, EventKind::Released, node.info);
    if (node.connection()) {
        depart(step, *node.connection(), id);
    }
    remember_departed(run, step.options.limits, id);
    run.nodes.remove(id);
    close_if_deserted(step, "stopped: every node was told to leave");
}

void goodbye(Step& step, ConnectionId connection, const Goodbye& message) {
    Run& run = step.run;
    if (const NodeId* const departing = run.departing.node_on(connection)) {
        remember_departed(run, step.options.limits, *departing);
        run.departing.erase(connection);
    }
    run.parked.erase(connection);
    const Node* node = run.nodes.speaking_on(connection);
    if (node == nullptr) {
        return;
    }
    if (!message.unprepared.empty() && node->standing() == Standing::Preparing && !is_closed(run)) {
        preparing_failed(step, *node, message);
    }
    gone_for_good(step, NodeId(node->info.node), message.unfit);
    run.departing.erase(connection);
}

void gone_for_good(Step& step, const NodeId& id, const std::string& unfit) {
    Run& run = step.run;
    remember_departed(run, step.options.limits, id);
    if (DDP_RULE(!unfit.empty() && !is_closed(run), UnfitTakenAgain, false)) {
        quarantine_unfit(step, id, run.nodes.at(id).info.hostname, unfit);
    }
    lose_node(step, id, unfit.empty() ? "gave up" : "is not fit");
    close_if_deserted(step, "stopped: every node gave up");
}

void connection_ended(Step& step, const ConnectionEnded& input) {
    Run& run = step.run;
    run.departing.erase(input.connection);
    run.parked.erase(input.connection);
    const Node* node = run.nodes.speaking_on(input.connection);
    if (node == nullptr) {
        return;
    }
    const NodeId id = node->info.node;
    run.nodes.cut_off(id);
    forget_quiet(run, id);
    const bool is_end = DDP_RULE(input.is_end_of_stream, EndOfStreamIgnored, false);
    const bool is_death = DDP_RULE(is_end, ResetTakenForDeath, true);
    if (is_death || !step.options.has_leases) {
        lose_node(step, id, "died (its connection ended)");
    } else {
        trace(step, fmt::format("node {} is cut off; believed alive until its lease ends",
                                node->info.hostname));
        publish(step, EventKind::LinkDown, node->info);
    }
}

void judge_departures(Step& step) {
    Run& run = step.run;
    const std::string why = "told to go and still here";
    while (const std::optional<ConnectionId> connection = run.departing.take_due(step.now)) {
        const Node* node = run.nodes.speaking_on(*connection);
        if (node == nullptr) {
            step.out.add(CloseConnection{*connection, why});
            continue;
        }
        // A member of a closed run: nothing is left to be decided about it.
        const NodeId id = node->info.node;
        drop_connection(step, *node, why);
        lose_node(step, id, why);
    }
}

void lose_node(Step& step, const NodeId& id, const std::string& how) {
    lose(step, id, step.now, how);
}

void lose_silent_node(Step& step, const NodeId& id, const std::string& how) {
    lose(step, id, step.run.nodes.at(id).last_heard, how);
}

}  // namespace ddprun::rdzv
