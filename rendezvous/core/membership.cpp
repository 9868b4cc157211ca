#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/check.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/protocol/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

std::string nnodes_of(const JobSettings& settings) {
    return settings.min_nodes == settings.max_nodes
               ? fmt::format("{}", settings.min_nodes)
               : fmt::format("{}:{}", settings.min_nodes, settings.max_nodes);
}

/// Why `join` may not be part of the run; empty if it may.
std::string objection(const Step& step, const Join& join) {
    const JobSettings& opened = step.run.settings;
    const auto disagrees = [&](const char* flag, const std::string& theirs,
                               const std::string& ours) {
        return fmt::format(
            "join refused: node {} asks {} {} but job {} was opened with {}; start it with {} {} "
            "or under another --rdzv-id",
            join.hostname, flag, theirs, step.job.value(), ours, flag, ours);
    };
    if (nnodes_of(join.settings) != nnodes_of(opened)) {
        return disagrees("--nnodes", nnodes_of(join.settings), nnodes_of(opened));
    }
    if (join.settings.max_restarts != opened.max_restarts) {
        return disagrees("--max-restarts", fmt::format("{}", join.settings.max_restarts),
                         fmt::format("{}", opened.max_restarts));
    }
    if (join.settings.max_node_losses != opened.max_node_losses) {
        return disagrees("--max-node-losses", fmt::format("{}", join.settings.max_node_losses),
                         fmt::format("{}", opened.max_node_losses));
    }
    if (step.run.nodes.size() >= step.options.limits.nodes_max &&
        !step.run.nodes.contains(join.node)) {
        return fmt::format("join refused: job {} already has {} nodes, the most this rendezvous "
                           "takes",
                           step.job.value(), step.run.nodes.size());
    }
    if (join.node_rank) {
        for (const auto& [id, node] : step.run.nodes) {
            if (id != join.node && node.info.node_rank == join.node_rank) {
                return fmt::format(
                    "join refused: node {} asks --node-rank {} but node {} of job {} has it; give "
                    "each node its own, or none at all",
                    join.hostname, *join.node_rank, node.info.hostname, step.job.value());
            }
        }
    }
    return {};
}

/// The connection may end by itself within the time that stopping takes.
void depart(Step& step, ConnectionId connection) {
    const JobSettings& settings = step.run.settings;
    const Limits& limits = step.options.limits;
    step.run.departing[connection] = step.now + settings.shutdown_timeout +
                                     settings.failure_grace + limits.unkillable_after +
                                     limits.stop_slack;
}

void renew_lease(Step& step, const NodeId& id, Node& node) {
    if (!step.options.has_leases) {
        return;
    }
    step.run.leases.erase({node.lease_end, id});
    node.lease_end = step.now + step.options.limits.lease;
    step.run.leases.insert({node.lease_end, id});
}

void accept(Step& step, const Node& node) {
    Accepted accepted{.run_token = step.run.token};
    if (step.options.has_leases) {
        accepted.lease = step.options.limits.lease;
        accepted.beat_interval = step.options.limits.beat_interval;
    }
    send(step, node, std::move(accepted));
}

void refuse(Step& step, ConnectionId connection, std::string text, int exit_code) {
    trace(step, text);
    step.out.push_back(Send{connection, Refused{text, exit_code}});
    step.out.push_back(CloseConnection{connection, std::move(text)});
}

/// The run is over and this late node is told so.
void answer_with_verdict(Step& step, ConnectionId connection, const Closed& closed) {
    depart(step, connection);
    step.out.push_back(Send{connection, Accepted{.run_token = step.run.token}});
    step.out.push_back(Send{connection, closed.verdict});
}

/// The older connection of a node is no longer its voice.
void drop_connection(Step& step, Node& node, const std::string& why, bool is_other_process) {
    if (!node.connection) {
        return;
    }
    const ConnectionId old = *node.connection;
    step.run.by_connection.erase(old);
    node.connection.reset();
    if (is_other_process) {
        step.out.push_back(Send{old, Refused{why, kExitRendezvousLost}});
    }
    step.out.push_back(CloseConnection{old, why});
}

void attach(Step& step, const NodeId& id, Node& node, ConnectionId connection) {
    node.connection = connection;
    node.said_waiting.clear();
    step.run.by_connection[connection] = id;
    renew_lease(step, id, node);
    accept(step, node);
    reindex(step, id);
}

void add_node(Step& step, ConnectionId connection, const Join& join) {
    Node& node = step.run.nodes[join.node];
    node = Node{};
    node.info = join;
    node.joined_as = ++step.run.joins;
    node.standing = join.held ? Standing::Unready : Standing::Ready;
    attach(step, join.node, node, connection);
    if (step.run.generation.value() > 0) {
        note(step, fmt::format("node {} joined", join.hostname));
        step.run.explain_at = step.now;
    } else {
        trace(step, fmt::format("node {} joined", join.hostname));
    }
    if (join.held) {
        trace(step, fmt::format("node {} came back with generation {}: fenced", join.hostname,
                                join.held->generation.value()));
        send(step, node,
             Stop{.generation = join.held->generation,
                  .cause = StopCause::Fenced,
                  .grace = step.run.settings.failure_grace,
                  .why = "this node was believed dead and the job went on without it"});
    }
}

/// A member of the current generation reconnects: what it may have missed is said again.
void catch_up(Step& step, const NodeId& id, Node& node, const Join& join) {
    const Run& run = step.run;
    if (const Stopping* stopping = std::get_if<Stopping>(&run.phase)) {
        if (stopping->pending.contains(id)) {
            send(step, node, stopping->order);
        }
        return;
    }
    DDP_CHECK(std::holds_alternative<Running>(run.phase));
    if (!join.held) {
        // Its Start was lost with the connection. It holds no worker, so it can have it again; the
        // store of group rank 0 is the one it still listens on.
        resend_start(step, id);
    }
}

}  // namespace

void join(Step& step, ConnectionId connection, const Join& message) {
    Run& run = step.run;
    if (const Closed* closed = std::get_if<Closed>(&run.phase)) {
        answer_with_verdict(step, connection, *closed);
        return;
    }
    if (run.by_connection.contains(connection) || run.departing.contains(connection)) {
        refuse(step, connection, "a second join on one connection", kExitInternal);
        return;
    }
    if (std::string text = objection(step, message); !text.empty()) {
        refuse(step, connection, std::move(text), kExitUsage);
        return;
    }
    Node* known = find_node(run, message.node);
    const bool is_same_process = message.run_token == run.token;
    if (known != nullptr && is_same_process) {
        drop_connection(step, *known, "this node reconnected", false);
        const bool holds_other =
            message.held && (known->standing != Standing::Member ||
                             message.held->generation != run.generation ||
                             message.held->digest != run.digest);
        if (!holds_other) {
            attach(step, message.node, *known, connection);
            trace(step, fmt::format("node {} reconnected", message.hostname));
            if (known->standing == Standing::Member) {
                catch_up(step, message.node, *known, message);
            } else {
                known->info = message;
                run.explain_at = step.now;
            }
            return;
        }
    }
    if (known != nullptr) {
        drop_connection(step, *known, "another ddprun took this node's place", !is_same_process);
        lose_node(step, message.node, "was replaced by a new ddprun on the same node");
    }
    add_node(step, connection, message);
}

void beat(Step& step, ConnectionId connection, const Beat& message) {
    const auto owner = step.run.by_connection.find(connection);
    if (owner == step.run.by_connection.end()) {
        return;
    }
    Node& node = step.run.nodes.at(owner->second);
    renew_lease(step, owner->second, node);
    send(step, node, Acknowledge{message.sequence});
}

void leave(Step& step, ConnectionId connection, const Leave& message) {
    const auto owner = step.run.by_connection.find(connection);
    if (owner == step.run.by_connection.end() ||
        std::holds_alternative<Closed>(step.run.phase)) {
        return;
    }
    const NodeId id = owner->second;
    Node& node = step.run.nodes.at(id);
    if (!node.leaving) {
        node.leaving = message.signal;
        reindex(step, id);
        note(step, fmt::format("node {} was told to leave (signal {})", node.info.hostname,
                               message.signal));
    }
    if (node.standing == Standing::Ready) {
        release(step, id);
    } else if (node.standing == Standing::Member &&
               std::holds_alternative<Running>(step.run.phase)) {
        begin_stopping(step, StopCause::Leave, message.signal,
                       fmt::format("node {} was told to leave", node.info.hostname));
    }
}

void release(Step& step, const NodeId& id) {
    Run& run = step.run;
    Node& node = run.nodes.at(id);
    send(step, node, Released{});
    trace(step, fmt::format("node {} released", node.info.hostname));
    if (node.connection) {
        run.by_connection.erase(*node.connection);
        depart(step, *node.connection);
    }
    run.departed.insert(id);
    run.leases.erase({node.lease_end, id});
    run.nodes.erase(id);
    reindex(step, id);
    if (run.nodes.empty() && !std::holds_alternative<Closed>(run.phase)) {
        close_run(step, Verdict{.kind = VerdictKind::Stopped,
                                .exit_code = kExitDrained,
                                .text = "stopped: every node was told to leave"});
    }
}

void goodbye(Step& step, ConnectionId connection) {
    Run& run = step.run;
    run.departing.erase(connection);
    const auto owner = run.by_connection.find(connection);
    if (owner == run.by_connection.end()) {
        return;
    }
    const NodeId id = owner->second;
    run.departed.insert(id);
    lose_node(step, id, "gave up");
    run.departing.erase(connection);
}

void connection_ended(Step& step, const ConnectionEnded& input) {
    Run& run = step.run;
    run.departing.erase(input.connection);
    const auto owner = run.by_connection.find(input.connection);
    if (owner == run.by_connection.end()) {
        return;
    }
    const NodeId id = owner->second;
    run.by_connection.erase(owner);
    Node& node = run.nodes.at(id);
    node.connection.reset();
    reindex(step, id);
    if (input.is_end_of_stream) {
        lose_node(step, id, "died (its connection ended)");
    } else {
        trace(step, fmt::format("node {} is cut off; believed alive until its lease ends",
                                node.info.hostname));
    }
}

void held_up(Step& step, Duration by) {
    Run& run = step.run;
    if (!step.options.has_leases) {
        return;
    }
    run.leases.clear();
    for (auto& [id, node] : run.nodes) {
        node.lease_end += by;
        run.leases.insert({node.lease_end, id});
    }
    trace(step, "held up: leases extended");
}

void judge_leases(Step& step) {
    Run& run = step.run;
    while (!run.leases.empty() && run.leases.begin()->first <= step.now) {
        const NodeId id = run.leases.begin()->second;
        drop_connection(step, run.nodes.at(id), "no sign of life for a whole lease", false);
        lose_node(step, id,
                  fmt::format("was silent for {} ms", step.options.limits.lease.count()));
    }
    for (auto it = run.departing.begin(); it != run.departing.end();) {
        if (it->second > step.now) {
            ++it;
            continue;
        }
        step.out.push_back(CloseConnection{it->first, "told to go and still here"});
        it = run.departing.erase(it);
    }
}

void lose_node(Step& step, const NodeId& id, const std::string& how) {
    Run& run = step.run;
    const auto found = run.nodes.find(id);
    DDP_CHECK(found != run.nodes.end(), id.value());
    const Node node = std::move(found->second);
    if (node.connection) {
        run.by_connection.erase(*node.connection);
        depart(step, *node.connection);
    }
    run.leases.erase({node.lease_end, id});
    run.nodes.erase(found);
    reindex(step, id);
    if (std::holds_alternative<Closed>(run.phase)) {
        return;
    }
    note(step, fmt::format("node {} {}", node.info.hostname, how));
    if (node.standing == Standing::Member) {
        member_lost(step, node, how);
    }
}

}  // namespace ddprun::rdzv
