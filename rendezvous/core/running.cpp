#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/step.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

Rank base_rank_of(const Run& run, const NodeId& id) {
    return Rank(run.rows.at(id).base_rank);
}

/// Workers are asked to save and leave, and nothing is wrong with them.
bool is_drain(StopCause cause) {
    return cause == StopCause::Grow || cause == StopCause::Leave;
}

void succeed(Step& step) {
    close_run(step, Verdict{.kind = VerdictKind::Succeeded,
                            .exit_code = kExitSuccess,
                            .text = "every rank exited 0"});
}

/// Failures are a cause of their own unless a drain had begun, or a node that went with them took
/// them down: then they are its loss's doing (S9).
bool is_charged_for_failures(const Stopping& stopping) {
    return !is_drain(stopping.order.cause) && !stopping.failures.empty() &&
           (!stopping.is_explained_by_loss || DDP_BUG(DoubleCharge));
}

bool are_losses_within_budget(const Run& run, const Stopping& stopping) {
    const int bound = run.settings.max_node_losses;
    return bound < 0 ||
           run.node_losses_used + static_cast<int>(stopping.lost_nodes.size()) <= bound;
}

/// Of very many failures the earliest are kept, whatever the order of arrival (S10, S11).
void keep_earliest(Stopping& stopping, const Limits& limits) {
    std::vector<TimedFailure>& failures = stopping.failures;
    if (failures.size() > limits.failures_kept_max) {
        failures.erase(std::max_element(failures.begin(), failures.end(), is_earlier));
    }
}

bool is_exec_failure_at_first(const Run& run, const Stopping& stopping) {
    return run.generation.value() == 1 &&
           std::any_of(stopping.failures.begin(), stopping.failures.end(),
                       [](const TimedFailure& failure) {
                           return failure.report.evidence.exec_errno.has_value();
                       });
}

/// Remembers where the first failure happened, and whose it was.
void learn_from(Step& step, const TimedFailure& first) {
    Run& run = step.run;
    const Evidence& evidence = first.report.evidence;
    const bool is_there_again = evidence.progress && evidence.progress == run.failed_step;
    run.failures_at_step = is_there_again ? run.failures_at_step + 1 : 1;
    run.failed_step = evidence.progress;
    if (evidence.exec_errno) {
        // Others could execute the program: it is missing or broken on this node.
        quarantine_if_dispensable(step, first.report.node, first.report.hostname,
                                  "could not execute the program");
    } else if (!evidence.hung) {
        // Who of those that waited for each other is at fault, nobody knows.
        blame(step, first.report.node, first.report.hostname);
    }
}

/// Restarted again and again, and never came any further (S9 would let it go on for long).
bool is_without_progress(const Run& run) {
    const int most = run.settings.max_restarts_at_step;
    return most > 0 && run.failed_step && run.failures_at_step > most;
}

void close_too_many_losses(Step& step, const Stopping& stopping) {
    close_run(step, Verdict{.kind = VerdictKind::Incomplete,
                            .exit_code = kExitNodesMissing,
                            .text = fmt::format(
                                "node {} was lost and --max-node-losses {} is used up",
                                stopping.lost_nodes.front(), step.run.settings.max_node_losses)});
}

/// Nodes that were told to leave and have no workers any more may go. True if the run was closed.
bool release_leavers(Step& step) {
    std::vector<NodeId> leavers;
    for (const auto& [id, node] : step.run.nodes) {
        if (node.leaving && node.standing == Standing::Member && node.connection) {
            leavers.push_back(id);
        }
    }
    if (DDP_BUG(LeaverForgotten)) {
        leavers.clear();
    }
    for (const NodeId& id : leavers) {
        release(step, id);
    }
    return is_closed(step.run);
}

/// The last member proved to be empty: charge one cause once (S9) and go on, or close.
void finish_stopping(Step& step) {
    Run& run = step.run;
    const Stopping stopping = std::get<Stopping>(run.phase);
    const bool has_failures = is_charged_for_failures(stopping);
    if (stopping.cause != StopCause::Failure && stopping.unfinished.empty()) {
        succeed(step);
        return;
    }
    if (is_exec_failure_at_first(run, stopping) ||
        (has_failures && run.restarts_used >= run.settings.max_restarts)) {
        close_failed(step, stopping);
        return;
    }
    if (has_failures) {
        learn_from(step, first_of(stopping));
        if (is_without_progress(run)) {
            close_without_progress(step, stopping);
            return;
        }
    }
    if (!stopping.lost_nodes.empty() && !are_losses_within_budget(run, stopping)) {
        close_too_many_losses(step, stopping);
        return;
    }
    const int charge = DDP_BUG(ChargePerFailure) ? stopping.failure_count : 1;
    run.restarts_used += has_failures ? charge : 0;
    if (!DDP_BUG(LossNotCharged)) {
        run.node_losses_used += static_cast<int>(stopping.lost_nodes.size());
    }
    if (!release_leavers(step)) {
        enter_forming(step, stopping.is_explained_by_loss ? stopping.loss_why : stopping.order.why);
    }
}

void no_longer_pending(Step& step, const NodeId& id) {
    Stopping& stopping = std::get<Stopping>(step.run.phase);
    stopping.pending.erase(id);
    if (stopping.pending.empty() || DDP_BUG(StartWithoutProof)) {
        finish_stopping(step);
    }
}

/// A failure is reported as soon as it is known; what the worker left behind follows.
void complete_evidence(Step& step, const NodeId& id, const WorkerFailed& message) {
    Stopping* stopping = std::get_if<Stopping>(&step.run.phase);
    if (stopping == nullptr) {
        return;
    }
    for (TimedFailure& failure : stopping->failures) {
        if (failure.report.node == id && failure.report.local_rank == message.local_rank) {
            DDP_PROBE(evidence_completed);
            complete(failure.report.evidence, trimmed(message.evidence, step.options.limits));
        }
    }
}

/// The store of the current generation goes with that node; the rendezvous's does not.
bool takes_store_along(const Run& run, const NodeId& id) {
    return run.places.front().node == id && run.store.port != 0;
}

}  // namespace

Node* current_member(Step& step, ConnectionId connection, Generation generation) {
    const auto owner = step.run.by_connection.find(connection);
    const bool is_stale = generation != step.run.generation && !DDP_BUG(StaleReportAccepted);
    if (owner == step.run.by_connection.end() || is_stale) {
        return nullptr;
    }
    Node& node = step.run.nodes.at(owner->second);
    return node.standing == Standing::Member ? &node : nullptr;
}

void worker_finished(Step& step, ConnectionId connection, const WorkerFinished& message) {
    Node* node = current_member(step, connection, message.generation);
    if (node == nullptr || message.local_rank.value() < 0 ||
        message.local_rank.value() >= node->info.slots ||
        node->failed.contains(message.local_rank)) {
        return;
    }
    const bool is_news = node->finished.insert(message.local_rank).second;
    const bool is_whole = node->finished.size() == static_cast<std::size_t>(node->info.slots);
    const NodeId id = step.run.by_connection.at(connection);
    if (Running* running = std::get_if<Running>(&step.run.phase)) {
        running->has_finished_rank = true;
        if (is_news) {
            running->finished_at = step.now;
            running->hangs_at.reset();
        }
        if (is_whole && running->unfinished.erase(id) > 0) {
            write_behind(step);
            forget_quiet(step.run, id);
            if (running->unfinished.empty() || DDP_BUG(SuccessOnFirstExit)) {
                succeed(step);
            }
        }
    } else if (Stopping* stopping = std::get_if<Stopping>(&step.run.phase)) {
        if (is_whole && stopping->unfinished.erase(id) > 0) {
            DDP_PROBE(finished_while_stopping);
            write_behind(step);
        }
    }
}

void worker_failed(Step& step, ConnectionId connection, const WorkerFailed& message) {
    Node* node = current_member(step, connection, message.generation);
    if (node == nullptr || message.local_rank.value() < 0 ||
        message.local_rank.value() >= node->info.slots ||
        node->finished.contains(message.local_rank)) {
        return;
    }
    const NodeId id = step.run.by_connection.at(connection);
    if (node->failed.contains(message.local_rank)) {
        complete_evidence(step, id, message);
        return;
    }
    const Rank rank(base_rank_of(step.run, id).value() + message.local_rank.value());
    if (std::holds_alternative<Running>(step.run.phase)) {
        const std::string why =
            fmt::format("rank {} on {} {}", rank.value(), node->info.hostname,
                        describe_end(trimmed(message.evidence, step.options.limits)));
        note(step, why);
        begin_stopping(step, StopCause::Failure, 15, why);
    }
    Stopping* stopping = std::get_if<Stopping>(&step.run.phase);
    if (stopping == nullptr) {
        return;
    }
    node->failed.insert(message.local_rank);
    stopping->failure_count += 1;
    // It cannot have failed before it was started, whatever its clock says.
    const Duration longest = step.now - step.run.started_at;
    const Duration age =
        std::clamp(Duration(message.evidence.age), Duration::zero(), std::max(longest, Duration{}));
    stopping->failures.push_back(TimedFailure{
        .at = step.now - age,
        .report = FailureReport{.generation = message.generation,
                                .rank = rank,
                                .local_rank = message.local_rank,
                                .hostname = node->info.hostname,
                                .node = id,
                                .evidence = trimmed(message.evidence, step.options.limits)}});
    keep_earliest(*stopping, step.options.limits);
}

void member_lost(Step& step, const Node& node, Instant died_at, const std::string& how) {
    Run& run = step.run;
    const NodeId& id = node.info.node;
    const bool serves_store = takes_store_along(run, id);
    if (Running* running = std::get_if<Running>(&run.phase)) {
        if (!running->unfinished.contains(id) && !serves_store && !DDP_BUG(FinishedNodeMissed)) {
            DDP_PROBE(finished_node_lost);
            write_behind(step);
            return;  // all its ranks exited 0: nothing is missed
        }
        begin_stopping(step, StopCause::Failure, 15,
                       fmt::format("node {} {}", node.info.hostname, how));
    }
    if (Stopping* stopping = std::get_if<Stopping>(&run.phase)) {
        const bool is_missed = stopping->unfinished.contains(id) || serves_store;
        if (is_missed && !node.leaving) {
            DDP_PROBE(member_lost_while_stopping);
            stopping->lost_nodes.push_back(node.info.hostname);
            blame(step, id, node.info.hostname);
            if (stopping->loss_why.empty()) {
                stopping->loss_why = fmt::format("node {} {}", node.info.hostname, how);
            }
            stopping->cause = StopCause::Failure;
            // One that went later went while its workers were being stopped.
            stopping->is_explained_by_loss |=
                died_at <= stopping->since + step.options.limits.lease;
        }
        write_behind(step);
        no_longer_pending(step, id);
    }
}

void stopped(Step& step, ConnectionId connection, const Stopped& message) {
    const auto owner = step.run.by_connection.find(connection);
    if (owner == step.run.by_connection.end()) {
        return;
    }
    const NodeId id = owner->second;
    Node& node = step.run.nodes.at(id);
    if (node.standing == Standing::Unready) {
        if (!node.info.held || node.info.held->generation != message.generation) {
            return;
        }
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
        return;
    }
    const bool is_current =
        node.standing == Standing::Member && message.generation == step.run.generation;
    const Running* running = std::get_if<Running>(&step.run.phase);
    const bool serves_store = is_current && takes_store_along(step.run, id);
    if (is_current && running != nullptr && !running->unfinished.contains(id) && !serves_store) {
        DDP_PROBE(finished_node_let_go_by_former_daemon);
        // All its ranks had exited 0, and a daemon before this one let it go.
        node.standing = Standing::Ready;
        node.info.store = message.store;
        reindex(step, id);
        return;
    }
    if (is_current && running != nullptr) {
        DDP_PROBE(stopped_by_former_daemon);
        // A daemon before this one had told it to. Why, those who failed say again.
        begin_stopping(step, StopCause::Failure, 15,
                       fmt::format("node {} had ended its workers", node.info.hostname));
    }
    const Stopping* stopping = std::get_if<Stopping>(&step.run.phase);
    if (stopping == nullptr || !is_current || !stopping->pending.contains(id)) {
        return;
    }
    node.info.store = message.store;
    trace(step, fmt::format("node {} is empty", node.info.hostname));
    no_longer_pending(step, id);
}

void unkillable(Step& step, ConnectionId connection, const Unkillable& message) {
    const auto owner = step.run.by_connection.find(connection);
    if (owner == step.run.by_connection.end()) {
        return;
    }
    const NodeId id = owner->second;
    const Node& node = step.run.nodes.at(id);
    const bool is_of_fenced = node.standing == Standing::Unready && node.info.held &&
                              node.info.held->generation == message.generation;
    if (is_of_fenced || current_member(step, connection, message.generation) != nullptr) {
        DDP_PROBE(unkillable_node_lost);
        lose_node(step, id, "has a worker that cannot be killed");
    }
}

void begin_stopping(Step& step, StopCause cause, int signal, const std::string& why) {
    Run& run = step.run;
    const Running running = std::get<Running>(run.phase);
    Milliseconds grace = is_drain(cause)
                             ? run.settings.shutdown_timeout
                             : std::min(run.settings.failure_grace, run.settings.shutdown_timeout);
    if (cause == StopCause::Grow && DDP_BUG(GrowthKills)) {
        grace = Milliseconds::zero();
    }
    const Limits& limits = step.options.limits;
    Stopping stopping;
    stopping.cause = cause;
    stopping.since = step.now;
    stopping.order = Stop{
        .generation = run.generation, .cause = cause, .signal = signal, .grace = grace, .why = why};
    stopping.give_up_at = step.now + time_to_stop(stopping.order, limits);
    stopping.unfinished = running.unfinished;
    for (const Place& place : run.places) {
        // A member that left after finishing is in the map and no longer here.
        if (const auto node = run.nodes.find(place.node);
            node != run.nodes.end() && node->second.standing == Standing::Member) {
            stopping.pending.insert(place.node);
        }
    }
    become(run, stopping);
    run.explain_at = step.now + limits.explain_every;
    trace(step, fmt::format("generation {} stops: {}", run.generation.value(), why));
    for (const NodeId& id : stopping.pending) {
        send(step, run.nodes.at(id), stopping.order);
    }
    write_behind(step);
}

Duration time_to_stop(const Stop& order, const Limits& limits) {
    const Milliseconds saving =
        order.cause == StopCause::Hang ? limits.stacks_timeout : Milliseconds::zero();
    return saving + order.grace + limits.unkillable_after + limits.stop_slack;
}

void judge_stopping(Step& step) {
    const Stopping* stopping = std::get_if<Stopping>(&step.run.phase);
    if (stopping == nullptr || stopping->give_up_at > step.now) {
        return;
    }
    const std::set<NodeId> late = stopping->pending;
    for (const NodeId& id : late) {
        DDP_PROBE(node_stopped_too_late);
        // Its agent connects again and is fenced until its workers are gone.
        const std::string how = "did not end its workers in time";
        drop_connection(step, step.run.nodes.at(id), how);
        lose_node(step, id, how);
    }
}

}  // namespace ddprun::rdzv
