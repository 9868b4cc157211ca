#include "rendezvous/core/orders.hpp"

#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/forming.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/core/stopping.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

namespace {

using Action = OperatorAction;

struct Objection {
    OrderFault fault = OrderFault::Conflict;
    std::string text;
};

/// One order, with what it means for this run.
struct Given {
    const OperatorOrder& order;
    std::string by;            ///< for people
    NodeId node;               ///< whom it is about
    std::string hostname;      ///< its
    Milliseconds duration{0};  ///< with what is usual
};

bool is_about_node(const OperatorOrder& order) {
    return order.action == Action::Drain || order.action == Action::Quarantine ||
           (order.action == Action::Release && !order.node.empty());
}

/// All nodes that this run knows, by id, with host names: above all the nodes that are here, then
/// those that had a place, then those that are left out.
std::map<NodeId, std::string> known_nodes(const Run& run) {
    std::map<NodeId, std::string> known;
    for (const auto& [id, node] : run.nodes) {
        known.emplace(id, node.info.hostname);
    }
    for (const Place& place : run.current.places) {
        known.emplace(place.node, place.hostname);
    }
    for (const auto& [id, one] : run.quarantined) {
        known.emplace(id, one.hostname);
    }
    return known;
}

std::string names_of(const std::map<NodeId, std::string>& nodes) {
    std::vector<std::string> names;
    for (const auto& [id, hostname] : nodes) {
        names.push_back(id.value());
    }
    return names.empty() ? std::string("none") : list_of(names);
}

/// Finds whom the order names: by id, or by a host name that only one has.
std::optional<Objection> find_node(const Step& step, Given& given) {
    const std::map<NodeId, std::string> known = known_nodes(step.run);
    const std::string& name = given.order.node;
    std::map<NodeId, std::string> found;
    for (const auto& [id, hostname] : known) {
        if (id.value() == name) {
            found = {{id, hostname}};
            break;
        }
        if (hostname == name) {
            found.emplace(id, hostname);
        }
    }
    if (found.empty()) {
        return Objection{OrderFault::Unknown,
                         fmt::format("job {} has no node {}; it has {}", step.job.value(),
                                     name.empty() ? "without a name" : name, names_of(known))};
    }
    if (found.size() > 1) {
        return Objection{OrderFault::Conflict,
                         fmt::format("job {} has {} nodes on host {}: {}; say which",
                                     step.job.value(), found.size(), name, names_of(found))};
    }
    given.node = found.begin()->first;
    given.hostname = found.begin()->second;
    return std::nullopt;
}

/// There is a run that decides something.
std::optional<Objection> object_to_phase(const Step& step, Action action) {
    const Run& run = step.run;
    if (const Closed* closed = std::get_if<Closed>(&run.phase)) {
        return Objection{OrderFault::Conflict,
                         fmt::format("job {} is over: {}", step.job.value(), closed->verdict.text)};
    }
    const Stopping* stopping = std::get_if<Stopping>(&run.phase);
    if (stopping != nullptr && !stopping->ended_by.empty() && action != Action::Stop) {
        return Objection{OrderFault::Conflict, fmt::format("job {} is being stopped by {}",
                                                           step.job.value(), stopping->ended_by)};
    }
    if (std::holds_alternative<Adopting>(run.phase) ||
        std::holds_alternative<Restored>(run.phase)) {
        return Objection{OrderFault::Conflict,
                         fmt::format("job {} waits for its nodes to come back: {}; ask again then",
                                     step.job.value(), explain_run(run, step.now))};
    }
    return std::nullopt;
}

std::optional<Objection> object_to_time(const Step& step, Given& given) {
    const Limits& limits = step.options.limits;
    given.duration = given.order.duration;
    if (given.order.action == Action::Quarantine && given.duration == Milliseconds(0)) {
        given.duration = limits.quarantine_cooldown;
    }
    const bool needs_time =
        given.order.action == Action::Hold || given.order.action == Action::Quarantine;
    if (needs_time && (given.duration <= Milliseconds(0) ||
                       given.duration > Milliseconds(limits.operator_for_max))) {
        return Objection{
            OrderFault::Invalid,
            fmt::format("--for {} s: it must be more than 0 and at most {} s",
                        given.duration.count() / 1000, limits.operator_for_max.count() / 1000)};
    }
    return std::nullopt;
}

std::optional<Objection> object_to_size(const Step& step, const Given& given) {
    const Run& run = step.run;
    const int nodes = given.order.nodes;
    if (!is_size(run.settings, nodes)) {
        return Objection{
            OrderFault::Invalid,
            fmt::format("job {} cannot have {}: it was opened with --nnodes {}", step.job.value(),
                        node_count(static_cast<std::size_t>(nodes)), nnodes_of(run.settings))};
    }
    const auto wanted = static_cast<std::size_t>(nodes);
    if (given.order.action == Action::Grow ? wanted < maximum(run) : wanted > maximum(run)) {
        return Objection{OrderFault::Conflict,
                         fmt::format("job {} may have up to {} now; to have {} at most, {}",
                                     step.job.value(), node_count(maximum(run)), nodes,
                                     given.order.action == Action::Grow ? "shrink it" : "grow it")};
    }
    return std::nullopt;
}

std::optional<Objection> object_to_release(const Step& step, const Given& given) {
    const Run& run = step.run;
    if (given.order.node.empty()) {
        return is_held(run, step.now)
                   ? std::nullopt
                   : std::optional(Objection{OrderFault::Conflict,
                                             fmt::format("job {} is not held", step.job.value())});
    }
    if (run.quarantined.is_left_out(given.node, step.now)) {
        return std::nullopt;
    }
    std::map<NodeId, std::string> left_out;
    for (const auto& [id, one] : run.quarantined) {
        if (one.until > step.now) {
            left_out.emplace(id, one.hostname);
        }
    }
    return Objection{OrderFault::Conflict,
                     fmt::format("node {} of job {} is not in quarantine; in it: {}",
                                 given.node.value(), step.job.value(), names_of(left_out))};
}

/// Why nothing can be done; fills in `given`.
std::optional<Objection> object(const Step& step, Given& given) {
    const Run& run = step.run;
    std::optional<Objection> objection = object_to_phase(step, given.order.action);
    if (!objection && is_about_node(given.order)) {
        objection = find_node(step, given);
    }
    if (!objection) {
        objection = object_to_time(step, given);
    }
    if (objection) {
        return objection;
    }
    switch (given.order.action) {
        case Action::Drain:
            if (!run.nodes.contains(given.node)) {
                return Objection{OrderFault::Conflict,
                                 fmt::format("node {} of job {} is not here: there is nothing to "
                                             "drain",
                                             given.node.value(), step.job.value())};
            }
            break;
        case Action::Restart:
            if (std::holds_alternative<Forming>(run.phase)) {
                return Objection{OrderFault::Conflict,
                                 fmt::format("job {} has no workers to restart: {}",
                                             step.job.value(), explain_run(run, step.now))};
            }
            break;
        case Action::Grow:
        case Action::Shrink:
            return object_to_size(step, given);
        case Action::Release:
            return object_to_release(step, given);
        case Action::Quarantine:
            if (run.quarantined.size() >= step.options.limits.nodes_max) {
                return Objection{OrderFault::Conflict, "too many nodes are in quarantine already"};
            }
            break;
        case Action::Hold:
        case Action::Stop:
            break;
    }
    return std::nullopt;
}

// ------------------------------------------------------------------------------- what comes of it
// Each says what happens now, in a line for who asked.

/// True if the generation stops now, for nothing that is wrong with it.
bool stop_workers(Step& step, StopCause cause, const std::string& why) {
    if (!std::holds_alternative<Running>(step.run.phase)) {
        return false;
    }
    enter_stopping(step, DDP_RULE(cause, OrderTakenForFailure, StopCause::Failure), SIGTERM, why);
    return true;
}

/// A generation in which ranks have finished is let end.
bool may_be_stopped(const Run& run) {
    const Running* running = std::get_if<Running>(&run.phase);
    return running != nullptr && !running->has_finished_rank;
}

std::string drain(Step& step, const Given& given) {
    Run& run = step.run;
    Node& node = run.nodes.at(given.node);
    if (node.leaving()) {
        return fmt::format("node {} leaves already", node.info.hostname);
    }
    const std::string hostname = node.info.hostname;
    const bool is_member = node.is_member();
    told_to_leave(step, node, Leave{.signal = SIGTERM});
    if (is_member) {
        stop_workers(step, StopCause::Leave,
                     fmt::format("node {} is drained by {}", hostname, given.by));
        return fmt::format("node {} leaves when all workers have saved; others go on without it",
                           hostname);
    }
    const bool may_go = node.connection() && node.standing() != Standing::Unready;
    if (DDP_RULE(may_go, OrderUnheard, false)) {
        release(step, given.node);
        return fmt::format("node {} had no workers and leaves now", hostname);
    }
    return fmt::format("node {} leaves as soon as it is back and empty", hostname);
}

std::string restart(Step& step, const Given& given) {
    const std::string why = fmt::format("restarted by {}", given.by);
    return stop_workers(step, StopCause::Leave, why)
               ? "all workers are asked to save, then they start anew"
               : "the workers are being stopped already, and start anew";
}

std::string hold(Step& step, const Given& given) {
    Run& run = step.run;
    run.hold = Hold{.until = step.now + given.duration, .asked = given.duration, .by = given.by};
    run.explain_at = step.now;
    return fmt::format(
        "no generation starts for {} s, or until it is released{}", given.duration.count() / 1000,
        std::holds_alternative<Forming>(run.phase) ? "" : "; the workers that run are left alone");
}

std::string stop(Step& step, const Given& given) {
    Run& run = step.run;
    if (std::holds_alternative<Forming>(run.phase)) {
        close_ended(step, given.by);
        return "the job is over";
    }
    stop_workers(step, StopCause::Leave, fmt::format("stopped by {}", given.by));
    std::get<Stopping>(run.phase).ended_by = given.by;
    return "all workers are asked to save, then the job is over";
}

void set_target(Run& run, int nodes) {
    run.target_nodes = nodes == run.settings.max_nodes ? std::nullopt : std::optional(nodes);
}

std::string grow(Step& step, const Given& given) {
    Run& run = step.run;
    set_target(run, given.order.nodes);
    run.explain_at = step.now;
    const std::size_t size = run.current.places.size();
    const std::size_t healthy = run.quarantined.healthy_count(run.nodes.ready(), step.now);
    const std::size_t next = largest_size(run.settings, std::min(size + healthy, maximum(run)));
    if (may_be_stopped(run) && next > size && !is_held(run, step.now) &&
        stop_workers(step, StopCause::Grow,
                     fmt::format("grown to {} by {}", node_count(next), given.by))) {
        return fmt::format("all workers are asked to save, then they start on {}",
                           node_count(next));
    }
    return fmt::format("up to {} from now on, as soon as they are there", node_count(maximum(run)));
}

std::string shrink(Step& step, const Given& given) {
    Run& run = step.run;
    set_target(run, given.order.nodes);
    run.explain_at = step.now;
    if (may_be_stopped(run) && run.current.places.size() > maximum(run) &&
        stop_workers(step, StopCause::Leave,
                     fmt::format("shrunk to {} by {}", node_count(maximum(run)), given.by))) {
        return fmt::format(
            "all workers are asked to save, then they start on {}; the others "
            "wait as spares",
            node_count(maximum(run)));
    }
    return fmt::format("at most {} from the next generation on", node_count(maximum(run)));
}

/// How many nodes a generation could be made of if this one stopped, without those left out.
std::size_t healthy_nodes(const Run& run, Instant now) {
    return static_cast<std::size_t>(
        std::count_if(run.nodes.begin(), run.nodes.end(), [&](const auto& one) {
            const Node& node = one.second;
            const bool is_usable =
                node.standing() == Standing::Ready || node.standing() == Standing::Member;
            return is_usable && node.connection() && !node.leaving() &&
                   !run.quarantined.is_left_out(one.first, now);
        }));
}

std::string quarantine(Step& step, const Given& given) {
    Run& run = step.run;
    const bool has_room =
        quarantine_by_order(step, given.node, given.hostname, given.by, given.duration);
    DDP_CHECK(has_room, given.node.value());
    run.explain_at = step.now;
    const auto node = run.nodes.find(given.node);
    const bool is_member = node != run.nodes.end() && node->second.is_member();
    const std::string for_so_long =
        fmt::format("node {} is left out for {} s", given.hostname, given.duration.count() / 1000);
    if (!is_member || !std::holds_alternative<Running>(run.phase)) {
        return for_so_long + ", while others suffice";
    }
    if (healthy_nodes(run, step.now) < minimum(run) || !may_be_stopped(run)) {
        return for_so_long + " once others suffice; its workers run on until then";
    }
    stop_workers(step, StopCause::Leave,
                 fmt::format("node {} was put in quarantine by {}", given.hostname, given.by));
    return for_so_long + ": all workers are asked to save, then they start without it";
}

std::string release_by_order(Step& step, const Given& given) {
    step.run.explain_at = step.now;
    if (given.order.node.empty()) {
        end_hold(step);
        return "the job is no longer held";
    }
    step.run.quarantined.release(given.node);
    return fmt::format("node {} may be taken again", given.hostname);
}

std::string carry_out(Step& step, const Given& given) {
    switch (given.order.action) {
        case Action::Drain:
            return drain(step, given);
        case Action::Restart:
            return restart(step, given);
        case Action::Hold:
            return hold(step, given);
        case Action::Stop:
            return stop(step, given);
        case Action::Grow:
            return grow(step, given);
        case Action::Shrink:
            return shrink(step, given);
        case Action::Quarantine:
            return quarantine(step, given);
        case Action::Release:
            break;
    }
    return release_by_order(step, given);
}

void publish_order(Step& step, const Given& given, const std::string& from) {
    const std::string_view action = word_of(given.order.action, kOperatorActionNames);
    std::vector<EventField> fields = {{"action", std::string(action)}};
    std::string what(action);
    if (!given.node.value().empty()) {
        fields.push_back({"host", given.hostname});
        fields.push_back({"node", given.node.value()});
        what += " " + given.hostname;
    }
    if (given.duration > Milliseconds(0)) {
        fields.push_back({"for_s", std::int64_t{given.duration.count() / 1000}});
        what += fmt::format(" for {} s", given.duration.count() / 1000);
    }
    if (given.order.nodes > 0) {
        fields.push_back({"nodes", std::int64_t{given.order.nodes}});
        what += fmt::format(" to {}", given.order.nodes);
    }
    fields.push_back({"by", given.by});
    fields.push_back({"from", from});
    publish(step, EventKind::Operator, std::move(fields));
    note(step, fmt::format("{} asks: {}", given.by, what));
}

}  // namespace

void refuse_order(Effects& out, const OrderGiven& given, OrderFault fault, std::string text) {
    out.add(Ordered{.number = given.number,
                    .reply = {.fault = fault, .event = 0, .text = std::move(text)}});
}

void take_order(Step& step, const OrderGiven& input) {
    Given given{.order = input.order,
                .by = input.order.by.empty() ? std::string("an operator") : input.order.by,
                .node = NodeId(),
                .hostname = {}};
    if (std::optional<Objection> objection = object(step, given)) {
        refuse_order(step.out, input, objection->fault, std::move(objection->text));
        return;
    }
    DDP_PROBE(order_taken);
    await_record(step);
    publish_order(step, given, input.from);
    std::string text = carry_out(step, given);
    step.out.add(
        Ordered{.number = input.number,
                .reply = {.fault = OrderFault::None, .event = 0, .text = std::move(text)}});
}

}  // namespace ddprun::rdzv
