#include "rendezvous/core/membership.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/running.hpp"
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

/// Half of the nodes, and at least two, have missed more than a beat or two at once: rather this
/// process or its network than theirs.
bool is_silence_ours(const Run& run, const Limits& limits, Instant now) {
    const Instant suspicious = now + limits.lease / 2;
    std::size_t silent = 0;
    for (const auto& [lease_end, id] : run.leases) {
        if (lease_end > suspicious) {
            break;
        }
        ++silent;
    }
    return silent >= 2 && silent * 2 >= run.nodes.size() && !DDP_BUG(NoSelfDoubt);
}

/// When a node is lost whatever this process doubts: hold-ups since it was last heard do not count.
Instant end_of_excuses(const Run& run, const Node& node, const Limits& limits) {
    const Duration held_up = run.held_up_for - node.held_up_before;
    return std::max(node.lease_end, node.last_heard + limits.doubted_silence_max + held_up);
}

void forget_node_rank(Run& run, const Node& node) {
    if (!node.info.node_rank) {
        return;
    }
    const auto rank = run.node_ranks.find(*node.info.node_rank);
    if (rank != run.node_ranks.end() && rank->second == node.info.node) {
        run.node_ranks.erase(rank);
    }
}

/// What it means is said by the phase; where no generation lives, nothing.
void member_lost(Step& step, const Node& node, Instant died_at, const std::string& how) {
    if (const Running* running = std::get_if<Running>(&step.run.phase)) {
        member_lost(step, *running, node, died_at, how);
    } else if (Stopping* stopping = std::get_if<Stopping>(&step.run.phase)) {
        member_lost(step, *stopping, node, died_at, how);
    }
}

void lose(Step& step, const NodeId& id, Instant died_at, const std::string& how) {
    Run& run = step.run;
    const auto found = run.nodes.find(id);
    DDP_CHECK(found != run.nodes.end(), id.value());
    const Node node = std::move(found->second);
    if (node.connection) {
        run.by_connection.erase(*node.connection);
        depart(step, *node.connection, id);
    }
    forget_node_rank(run, node);
    run.leases.erase({node.lease_end, id});
    run.nodes.erase(found);
    reindex(step, id);
    if (is_closed(run)) {
        return;
    }
    note(step, fmt::format("node {} {}", node.info.hostname, how));
    if (node.standing == Standing::Member) {
        member_lost(step, node, died_at, how);
    }
    if (node.leaving) {
        close_if_deserted(step, "stopped: every node was told to leave");
    }
}

/// The same for a silent one, which died when it was last heard.
void lose_silent_node(Step& step, const NodeId& id, const std::string& how) {
    lose(step, id, step.run.nodes.at(id).last_heard, how);
}

}  // namespace

Node* speaker_of(Run& run, ConnectionId connection) {
    const auto owner = run.by_connection.find(connection);
    return owner == run.by_connection.end() ? nullptr : &run.nodes.at(owner->second);
}

Node* current_member(Run& run, ConnectionId connection, Generation generation) {
    Node* node = speaker_of(run, connection);
    const bool is_stale = generation != run.generation && !DDP_BUG(StaleReportAccepted);
    return node != nullptr && !is_stale && node->standing == Standing::Member ? node : nullptr;
}

void depart(Step& step, ConnectionId connection, const NodeId& id) {
    const JobSettings& settings = step.run.settings;
    const Limits& limits = step.options.limits;
    const Instant until = step.now + settings.shutdown_timeout + settings.failure_grace +
                          limits.unkillable_after + limits.stop_slack;
    step.run.departing[connection] = Departing{.node = id, .until = until};
}

void renew_lease(Step& step, const NodeId& id, Node& node) {
    node.last_heard = step.now;
    node.held_up_before = step.run.held_up_for;
    if (!step.options.has_leases) {
        return;
    }
    step.run.leases.erase({node.lease_end, id});
    node.lease_end = step.now + step.options.limits.lease;
    if (DDP_BUG(SilentDeathIgnored)) {
        node.lease_end = Instant::max();
    }
    step.run.leases.insert({node.lease_end, id});
}

void drop_connection(Step& step, Node& node, const std::string& why) {
    if (!node.connection) {
        return;
    }
    step.run.by_connection.erase(*node.connection);
    step.run.departing.erase(*node.connection);
    step.out.add(CloseConnection{*node.connection, why});
    node.connection.reset();
}

void beat(Step& step, ConnectionId connection, const Beat& message) {
    Node* node = speaker_of(step.run, connection);
    if (node == nullptr) {
        return;
    }
    if (!DDP_BUG(LeaseNotRenewed)) {
        renew_lease(step, node->info.node, *node);
    }
    send(step, *node, Acknowledge{message.sequence});
}

void told_to_leave(Step& step, Node& node, const Leave& message) {
    if (node.leaving) {
        return;
    }
    node.leaving = message.signal;
    reindex(step, node.info.node);
    note(step,
         fmt::format("node {} was told to leave (signal {})", node.info.hostname, message.signal));
}

void fenced_node_emptied(Step& step, Node& node, const Stopped& message) {
    if (!node.info.held || node.info.held->generation != message.generation) {
        return;
    }
    const NodeId id = node.info.node;
    node.standing = Standing::Ready;
    node.info.store = message.store;
    node.info.held.reset();
    reindex(step, id);
    DDP_PROBE(fenced_node_emptied);
    trace(step, fmt::format("node {} is empty", node.info.hostname));
    step.run.explain_at = step.now;
    if (node.leaving && !is_closed(step.run)) {
        release(step, id);
    }
}

void unkillable(Step& step, ConnectionId connection, const Unkillable& message) {
    const Node* node = speaker_of(step.run, connection);
    if (node == nullptr) {
        return;
    }
    const bool is_of_fenced = node->standing == Standing::Unready && node->info.held &&
                              node->info.held->generation == message.generation;
    if (is_of_fenced || current_member(step.run, connection, message.generation) != nullptr) {
        DDP_PROBE(unkillable_node_lost);
        lose_node(step, NodeId(node->info.node), "has a worker that cannot be killed");
    }
}

void release(Step& step, const NodeId& id) {
    Run& run = step.run;
    Node& node = run.nodes.at(id);
    if (run.nodes.size() == 1 && !is_closed(run)) {
        await_record(
            step);  // the last one to go ends the run: nobody would come back to an older one
    }
    send(step, node, Released{});
    trace(step, fmt::format("node {} released", node.info.hostname));
    if (node.connection) {
        run.by_connection.erase(*node.connection);
        depart(step, *node.connection, id);
    }
    remember_departed(run, step.options.limits, id);
    forget_node_rank(run, node);
    run.leases.erase({node.lease_end, id});
    run.nodes.erase(id);
    reindex(step, id);
    close_if_deserted(step, "stopped: every node was told to leave");
}

void goodbye(Step& step, ConnectionId connection, const Goodbye& message) {
    Run& run = step.run;
    if (const auto departing = run.departing.find(connection); departing != run.departing.end()) {
        remember_departed(run, step.options.limits, departing->second.node);
        run.departing.erase(departing);
    }
    run.parked.erase(connection);
    const auto owner = run.by_connection.find(connection);
    if (owner == run.by_connection.end()) {
        return;
    }
    gone_for_good(step, NodeId(owner->second), message.unfit);
    run.departing.erase(connection);
}

void gone_for_good(Step& step, const NodeId& id, const std::string& unfit) {
    Run& run = step.run;
    remember_departed(run, step.options.limits, id);
    if (!unfit.empty() && !is_closed(run) && !DDP_BUG(UnfitTakenAgain)) {
        quarantine_unfit(step, id, run.nodes.at(id).info.hostname, unfit);
    }
    lose_node(step, id, unfit.empty() ? "gave up" : "is not fit");
    close_if_deserted(step, "stopped: every node gave up");
}

void connection_ended(Step& step, const ConnectionEnded& input) {
    Run& run = step.run;
    run.departing.erase(input.connection);
    run.parked.erase(input.connection);
    const auto owner = run.by_connection.find(input.connection);
    if (owner == run.by_connection.end()) {
        return;
    }
    const NodeId id = owner->second;
    run.by_connection.erase(owner);
    Node& node = run.nodes.at(id);
    node.connection.reset();
    forget_quiet(run, id);
    reindex(step, id);
    const bool is_death =
        (input.is_end_of_stream && !DDP_BUG(EndOfStreamIgnored)) || DDP_BUG(ResetTakenForDeath);
    if (is_death || !step.options.has_leases) {
        lose_node(step, id, "died (its connection ended)");
    } else {
        trace(step, fmt::format("node {} is cut off; believed alive until its lease ends",
                                node.info.hostname));
    }
}

void doubt_silence(Step& step, Duration by) {
    Run& run = step.run;
    run.held_up_for += by;
    // Agents may have given up connections that were not answered, and all they had said there. How
    // long we were away is known to within a lease only, and beats of before prove little.
    const Milliseconds grace = step.options.limits.reconnect_grace;
    run.doubt_until = std::max(run.doubt_until.value_or(step.now), step.now + grace);
    trace(step, fmt::format("held up: no silence is judged for {} ms", grace.count()));
}

void judge_leases(Step& step) {
    Run& run = step.run;
    const Limits& limits = step.options.limits;
    const bool is_in_doubt = run.doubt_until && *run.doubt_until > step.now;
    const bool is_doubt_over =
        !is_in_doubt && std::exchange(run.doubt_until, std::nullopt).has_value();
    if (run.leases.empty() || run.leases.begin()->first > step.now) {
        return;
    }
    if (!is_in_doubt && !is_doubt_over && !is_closed(run) &&
        is_silence_ours(run, limits, step.now)) {
        DDP_PROBE(silence_may_be_ours);
        run.doubt_until = step.now + limits.self_doubt;
        note(step, fmt::format("half of the nodes fell silent at once: nothing is judged for {} ms",
                               limits.self_doubt.count()));
        return;
    }
    while (!run.leases.empty() && run.leases.begin()->first <= step.now) {
        const NodeId id = run.leases.begin()->second;
        Node& node = run.nodes.at(id);
        if (is_in_doubt && end_of_excuses(run, node, limits) > step.now) {
            break;  // the others were heard later
        }
        const auto silence = std::chrono::duration_cast<Milliseconds>(step.now - node.last_heard);
        drop_connection(step, node, "no sign of life for a whole lease");
        lose_silent_node(step, id, fmt::format("was silent for {} ms", silence.count()));
    }
}

std::optional<Instant> leases_deadline(const Run& run, const Limits& limits, Instant now) {
    if (!run.doubt_until) {
        return run.leases.empty() ? std::optional<Instant>() : run.leases.begin()->first;
    }
    // Never asleep for longer than a lease, or a hold-up in the meantime would not be noticed.
    Instant deadline = std::min(*run.doubt_until, now + limits.lease);
    if (!run.leases.empty()) {
        const Node& longest = run.nodes.at(run.leases.begin()->second);
        deadline = std::min(deadline, end_of_excuses(run, longest, limits));
    }
    return deadline;
}

void judge_departures(Step& step) {
    Run& run = step.run;
    for (auto it = run.departing.begin(); it != run.departing.end();) {
        if (it->second.until > step.now) {
            ++it;
            continue;
        }
        const ConnectionId connection = it->first;
        const std::string why = "told to go and still here";
        it = run.departing.erase(it);
        const auto owner = run.by_connection.find(connection);
        if (owner == run.by_connection.end()) {
            step.out.add(CloseConnection{connection, why});
            continue;
        }
        // A member of a closed run: nothing is left to be decided about it.
        const NodeId id = owner->second;
        drop_connection(step, run.nodes.at(id), why);
        lose_node(step, id, why);
    }
}

void lose_node(Step& step, const NodeId& id, const std::string& how) {
    lose(step, id, step.now, how);
}

}  // namespace ddprun::rdzv
