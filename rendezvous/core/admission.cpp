#include "rendezvous/core/admission.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/adopting.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/preparing.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/restored.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/sameness.hpp"
#include "rendezvous/core/silence.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/wire/message_fields.hpp"
#include "rendezvous/wire/node_sizes.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

constexpr const char* kReplaced =
    "another ddprun took the place of this node; give each its own --node-id if both are meant";

/// As the flag takes it.
std::string hang_timeout_of(const JobSettings& settings) {
    return settings.learns_hang_timeout
               ? "auto"
               : fmt::format("{:g}", std::chrono::duration<double>(settings.hang_timeout).count());
}

/// The settings that all nodes of a job must share: each flag with its value.
std::array<std::pair<const char*, std::string>, 7> shared_settings(const JobSettings& settings) {
    return {{{"--nnodes", nnodes_of(settings)},
             {"--max-restarts", fmt::format("{}", settings.max_restarts)},
             {"--max-node-losses", fmt::format("{}", settings.max_node_losses)},
             {"--hang-timeout", hang_timeout_of(settings)},
             {"--store-admit", settings.store_admits_any ? "any" : "members"},
             {"--same", std::string(word_of(settings.same, kSamenessNames))},
             {"--memory-replicas", fmt::format("{}", settings.memory_replicas)}}};
}

/// Why `join` may not be part of this run; empty if it may.
std::string objection(const Step& step, const Join& join) {
    const JobSettings& opened = step.run.settings;
    const auto theirs = shared_settings(join.settings);
    const auto ours = shared_settings(opened);
    if (const auto [other, own] = std::mismatch(theirs.begin(), theirs.end(), ours.begin());
        own != ours.end()) {
        const auto& [flag, value] = *own;
        return fmt::format(
            "join refused: node {} asks {} {} but job {} was opened with {}; start it with {} {} "
            "or under another --rdzv-id",
            join.hostname, flag, other->second, step.job.value(), value, flag, value);
    }
    const std::int64_t slots = std::max(step.run.slots_max, join.slots);
    const int served = smaller_bound(step.run.workers_max, join.workers_max);
    if (served > 0 && slots * opened.min_nodes > served) {
        return fmt::format(
            "join refused: node {} has --nproc-per-node {}: {} of {} workers, the fewest of job "
            "{}, are more than the {} that the workers' store serves; start fewer{}",
            join.hostname, join.slots, node_count(minimum(step.run)), slots, step.job.value(),
            served, hint_of_relays(served));
    }
    if (std::string unlike = objection_as_unlike(step.run, join); !unlike.empty()) {
        return unlike;
    }
    const std::size_t most =
        DDP_RULE(step.options.limits.nodes_max, SurplusRefused, maximum(step.run));
    if (step.run.nodes.size() >= most && !step.run.nodes.contains(join.node)) {
        return fmt::format(
            "join refused: job {} already has {} nodes, the most this rendezvous takes; start node "
            "{} once one of them has gone",
            step.job.value(), step.run.nodes.size(), join.hostname);
    }
    if (join.node_rank) {
        const Node* owner = step.run.nodes.with_node_rank(*join.node_rank);
        if (owner != nullptr && owner->info.node != join.node) {
            return fmt::format(
                "join refused: node {} asks --node-rank {} but node {} of job {} has it; give each "
                "node its own, or none at all",
                join.hostname, *join.node_rank, owner->info.hostname, step.job.value());
        }
    }
    return {};
}

/// Sends the node away. If a joined node spoke on `connection`, it is cut off now.
void turn_away(Step& step, ConnectionId connection, const std::string& text, int exit_code) {
    trace(step, text);
    step.run.turned_away = text;
    publish(step, EventKind::Refused, {{"text", text}, {"exit_code", std::int64_t{exit_code}}});
    refuse(step.out, connection, text, exit_code);
    connection_ended(step, ConnectionEnded{.connection = connection});
}

/// Gives a node that is no member the standing that it may have: none while it holds workers.
void take_stock(Step& step, const NodeId& id, Node& node) {
    const bool is_fenced = DDP_RULE(node.info.held.has_value(), FenceMissing, false);
    const bool prepares = !is_fenced && has_to_prepare(step.run, node.info);
    step.run.nodes.set_standing(id, is_fenced  ? Standing::Unready
                                    : prepares ? Standing::Preparing
                                               : Standing::Ready);
    if (prepares) {
        ask_to_prepare(step, node);
    } else {
        joined_prepared(step, node);
    }
    if (!is_fenced) {
        if (!step.run.current.places.empty()) {
            explain_soon(step);
        }
        return;
    }
    const Generation held = node.info.held->generation;
    trace(step, fmt::format("node {} holds workers of generation {}: fenced", node.info.hostname,
                            held.value()));
    send(step, node,
         Stop{.generation = held,
              .cause = StopCause::Fenced,
              .grace = step.run.settings.failure_grace,
              .why = "this node was believed dead and the job went on without it"});
}

void add_node(Step& step, ConnectionId connection, const Join& join) {
    Node& node = step.run.nodes.add(join.node);
    node.info = join;
    node.joined_as = ++step.run.joins;
    DDP_RULE(void(), PatienceRestarted,
             std::holds_alternative<Forming>(step.run.phase)
                 ? std::get<Forming>(step.run.phase).patience_end.reset()
                 : void());
    std::string text = fmt::format("node {} joined", join.hostname);
    if (!step.run.current.places.empty()) {
        note(step, std::move(text));
    } else {
        trace(step, std::move(text));
    }
    publish(step, EventKind::Joined, join, {{"workers", std::int64_t{join.slots}}});
    if (std::holds_alternative<Running>(step.run.phase)) {
        publish(step, EventKind::Spare, join);
    }
    attach(step, node, connection);
    take_stock(step, join.node, node);
}

/// A member of the current generation reconnects: what it may have missed is said again.
void catch_up(Step& step, const NodeId& id, Node& node, const Join& join) {
    const Run& run = step.run;
    if (Stopping* stopping = std::get_if<Stopping>(&step.run.phase)) {
        DDP_RULE(void(), BudgetEscapedByRejoin, stopping->failures.clear());
        if (DDP_RULE(stopping->pending.contains(id), StopNotRepeated, false)) {
            send(step, node, stopping->order);
        } else {
            node.info.store = join.store;
        }
        return;
    }
    DDP_CHECK(std::holds_alternative<Running>(run.phase));
    if (DDP_RULE(!join.held && node.finished.empty() && node.failed.empty(), StartNotRepeated,
                 false)) {
        // Its Start was lost with the connection. It holds no worker, so it can have it again; the
        // store of group rank 0 is the one it still listens on.
        Start row = run.current.rows.at(id);
        row.why.clear();
        send(step, node, std::move(row));
    }
}

/// The same ddprun on a new connection. True if it goes on as the node it was.
bool is_taken_back(Step& step, ConnectionId connection, Node& node, const Join& message) {
    const Run& run = step.run;
    const NodeId& id = message.node;
    drop_connection(step, node, "this node reconnected");
    if (node.is_member()) {
        const bool holds_another =
            message.held && (message.held->generation != run.current.number ||
                             message.held->digest != run.current.digest);
        const bool is_another = holds_another || message.slots != node.info.slots;
        const bool was_restored = step.now < run.returns_until;
        if (DDP_RULE(is_another, RestoredRunRestarts, is_another || was_restored)) {
            return false;
        }
        // After a restart of this daemon little more than the name was known.
        node.info = message;
        node.info.held.reset();
        trace(step, fmt::format("node {} reconnected", message.hostname));
        publish(step, EventKind::LinkUp, message);
        attach(step, node, connection);
        if (was_restored) {
            write_behind(step);  // what was restored has proved to be of use
        }
        catch_up(step, id, node, message);
        return true;
    }
    trace(step, fmt::format("node {} reconnected", message.hostname));
    publish(step, EventKind::LinkUp, message);
    node.info = message;
    attach(step, node, connection);
    take_stock(step, id, node);
    if (node.leaving() && node.standing() != Standing::Unready) {
        release(step, id);
    }
    return true;
}

/// Waits until it is known which run goes on; each node once.
void park(Step& step, ConnectionId connection, const Join& message) {
    if (const auto earlier = step.run.parked.put(connection, message)) {
        // g++ 12 takes parts of other effects for uninitialised in a temporary one.
        Effect close = CloseConnection{*earlier, "this node reconnected"};
        step.out.add(std::move(close));
    }
}

/// Numbers that a daemon before this one has used are not used again.
void learn_numbers(Run& run, const Join& message) {
    run.current.learn_number(
        std::max(message.newest, message.held ? message.held->generation : Generation()));
}

/// A join that may be: of a node that is known, or of a new one.
void take_in(Step& step, ConnectionId connection, const Join& message) {
    Run& run = step.run;
    learn_numbers(run, message);
    learn_size(run, message);
    if (Node* known = run.nodes.get(message.node)) {
        if (known->connection() && connection < *known->connection()) {
            DDP_PROBE(join_of_the_past);
            // Said long ago, by a ddprun that is gone: the present one connected later.
            turn_away(step, connection, kReplaced, kExitRendezvousLost);
            return;
        }
        const bool is_same_process =
            message.run_token == run.token && message.process == known->info.process;
        if (is_same_process && is_taken_back(step, connection, *known, message)) {
            return;
        }
        const std::string how = "was replaced by a new ddprun on the same node";
        if (known->connection()) {
            step.out.add(Send{*known->connection(), Refused{kReplaced, kExitRendezvousLost}});
            drop_connection(step, *known, how);
        }
        DDP_PROBE(node_replaced);
        lose_node(step, message.node, how);
        if (is_closed(run)) {
            answer_with_verdict(step, connection, message);
            return;
        }
    }
    add_node(step, connection, message);
}

/// So that the daemon of thousands of nodes is not busy with beats; three to a lease leave room for
/// a lost packet.
Milliseconds beat_interval_of(const Run& run, const Limits& limits) {
    const auto nodes = std::max(static_cast<std::int64_t>(run.nodes.size()),
                                static_cast<std::int64_t>(run.settings.max_nodes));
    const Milliseconds paced(nodes * 1000 / limits.beats_per_second_max);
    return std::clamp(paced, limits.beat_interval,
                      std::max(limits.beat_interval, limits.lease / 3));
}

}  // namespace

std::string fault_of(const Join& message, const Limits& limits) {
    const JobSettings& asked = message.settings;
    const auto outside = [&](const char* what, int value, int least, auto most) {
        return fmt::format("join refused: node {} has {} {}; it must be {} to {}", message.hostname,
                           what, value, least, most);
    };
    const int nodes_max = static_cast<int>(limits.nodes_max);
    if (message.slots < 1 || message.slots > limits.slots_max) {
        return outside("--nproc-per-node", message.slots, 1, limits.slots_max);
    }
    if (asked.max_nodes > nodes_max || !are_sizes_sound(asked)) {
        return fmt::format(
            "join refused: node {} has --nnodes {}; it must be MIN:MAX, both multiples of "
            "--node-unit, or sizes that grow, 1 to {}",
            message.hostname, nnodes_of(asked), nodes_max);
    }
    if (asked.max_restarts < 0) {
        return outside("--max-restarts", asked.max_restarts, 0, "any number");
    }
    if (message.node_rank && *message.node_rank < 0) {
        return outside("--node-rank", *message.node_rank, 0, nodes_max - 1);
    }
    return {};
}

void attach(Step& step, Node& node, ConnectionId connection) {
    const NodeId& id = node.info.node;
    step.run.nodes.connect(id, connection);
    node.said_waiting.clear();
    forget_quiet(step.run, id);
    renew_lease(step, node);
    Accepted accepted{.run_token = step.run.token,
                      .is_lasting = step.options.is_lasting,
                      .keeps_sizes = true,
                      .compares_nodes = true,
                      .names_partners = true,
                      .hears_moments = true,
                      .tells_events = true};
    if (step.options.has_leases) {
        accepted.lease = step.options.limits.lease;
        accepted.beat_interval = beat_interval_of(step.run, step.options.limits);
    }
    send(step, node, std::move(accepted));
}

void refuse(Effects& out, ConnectionId connection, const std::string& text, int exit_code) {
    out.add(Send{connection, Refused{text, exit_code}});
    out.add(CloseConnection{connection, text});
}

void join(Step& step, ConnectionId connection, const Join& message) {
    Run& run = step.run;
    if (run.nodes.by_connection().contains(connection) || run.departing.contains(connection) ||
        run.parked.contains(connection)) {
        turn_away(step, connection, "a second join on one connection", kExitInternal);
        return;
    }
    if (is_closed(run)) {
        answer_with_verdict(step, connection, message);
        return;
    }
    // Perhaps no node of the restored run comes back: a stranger's objections do not matter yet.
    const bool is_stranger =
        std::holds_alternative<Restored>(run.phase) && message.run_token != run.token;
    std::string text = fault_of(message, step.options.limits);
    if (text.empty() && !is_stranger) {
        text = objection(step, message);
    }
    if (!text.empty()) {
        turn_away(step, connection, text, kExitUsage);
        return;
    }
    trace_implausible(step, message);
    if (std::holds_alternative<Adopting>(run.phase) ||
        is_news_of_generation(run, message, step.options.limits, step.now)) {
        enter_adopting(step);
        learn_numbers(run, message);
        park(step, connection, message);
        return;
    }
    if (is_stranger) {
        park(step, connection, message);
        return;
    }
    if (std::holds_alternative<Restored>(run.phase)) {
        leave_restored(step);
    }
    const std::map<ConnectionId, Join> parked = run.parked.take_all();
    take_in(step, connection, message);
    for (const auto& [waiting, its_message] : parked) {
        join(step, waiting, its_message);
    }
}
}  // namespace ddprun::rdzv
