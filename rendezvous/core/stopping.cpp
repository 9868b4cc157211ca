#include "rendezvous/core/stopping.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/forming.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/events/event_fields.hpp"

namespace ddprun::rdzv {

namespace {

/// Workers are asked to save and leave, and nothing is wrong with them.
bool is_drain(StopCause cause) {
    return cause == StopCause::Grow || cause == StopCause::Leave;
}

/// Failures are a cause of their own unless a drain had begun, or a node that went with them took
/// them down: then they are its loss's doing (S9).
bool is_charged_for_failures(const Stopping& stopping) {
    return !is_drain(stopping.order.cause) && !stopping.failures.empty() &&
           DDP_RULE(!stopping.is_explained_by_loss, DoubleCharge, true);
}

bool is_exec_failure_at_first(const Run& run, const Stopping& stopping) {
    return run.current.number.value() == 1 &&
           std::any_of(stopping.failures.begin(), stopping.failures.end(),
                       [](const TimedFailure& failure) {
                           return failure.report.evidence.exec_errno.has_value();
                       });
}

/// Remembers where the first failure happened, and whose it was.
void learn_from(Step& step, const TimedFailure& first) {
    const Evidence& evidence = first.report.evidence;
    step.run.budgets.learn_step(evidence.progress);
    if (evidence.exec_errno) {
        // Others could execute the program: it is missing or broken on this node.
        quarantine_if_dispensable(step, first.report.node, first.report.hostname,
                                  "could not execute the program");
    } else if (!evidence.hung) {
        // After a hang it is unknown which of the nodes that waited for each other is at fault.
        blame(step, first.report.node, first.report.hostname);
    }
}

/// A failure that comes again and again before any step is named, once in a row of them.
void tell_if_alike(Step& step, const Evidence& evidence, bool goes_on) {
    const int most = step.options.limits.same_failures_said;
    if (step.run.budgets.learn_likeness(likeness_of(evidence)) != most) {
        return;
    }
    DDP_PROBE(same_failure_again);
    const std::string text = fmt::format(
        "the last {} failures are the same ({}), and no step was told before them: a "
        "restart seems not to mend it",
        most, describe_end_and_cause(evidence, step.options.limits));
    note(step, text);
    if (goes_on) {
        tell_all(step, text);
    }
}

/// The timeline has what is known of it by now, with its cause, in place of what was known then.
void complete_note_of_end(Step& step, const Stopping& stopping) {
    const FailureReport& first = first_of(stopping.failures).report;
    if (stopping.order.cause == StopCause::Failure && !stopping.is_explained_by_loss) {
        amend_note(step, stopping.order.why, describe_rank_and_cause(first, step.options.limits));
    }
}

/// Why the run forms again. Evidence that came after the order is in it, also on the timeline.
std::string cause_of_restart(Step& step, const Stopping& stopping, bool has_failures) {
    if (stopping.is_explained_by_loss) {
        return stopping.loss_why;
    }
    if (!has_failures) {
        return stopping.order.why;
    }
    const FailureReport& first = first_of(stopping.failures).report;
    std::string cause = describe_failure(first, step.options.limits);
    if (first.evidence.hung) {
        cause = fmt::format("{}; {}", stopping.order.why, cause);
    }
    amend_note(step, stopping.order.why, cause);
    return cause;
}

/// Nodes that were told to leave and have no workers any more may go. True if the run was closed.
bool release_leavers(Step& step) {
    std::vector<NodeId> leavers;
    for (const auto& [id, node] : step.run.nodes) {
        if (DDP_RULE(node.leaving() && node.is_member() && node.connection(), LeaverForgotten,
                     false)) {
            leavers.push_back(id);
        }
    }
    for (const NodeId& id : leavers) {
        release(step, id);
    }
    return is_closed(step.run);
}

/// The last member proved to be empty: charge one cause once (S9) and go on, or close.
void leave_stopping(Step& step) {
    Run& run = step.run;
    const Stopping stopping = std::get<Stopping>(run.phase);
    Budgets& budgets = run.budgets;
    const bool has_failures = is_charged_for_failures(stopping);
    if (stopping.cause != StopCause::Failure && stopping.unfinished.empty()) {
        close_succeeded(step);
        return;
    }
    const bool goes_on = !is_exec_failure_at_first(run, stopping) &&
                         (!has_failures || budgets.has_restart_left(run.settings));
    if (has_failures) {
        tell_if_alike(step, first_of(stopping.failures).report.evidence, goes_on);
    }
    if (!goes_on) {
        complete_note_of_end(step, stopping);
        close_failed(step, stopping);
        return;
    }
    if (!stopping.ended_by.empty()) {
        close_ended(step, stopping.ended_by);
        return;
    }
    if (has_failures) {
        learn_from(step, first_of(stopping.failures));
        if (budgets.is_without_progress(run.settings)) {
            complete_note_of_end(step, stopping);
            close_without_progress(step, stopping);
            return;
        }
    }
    if (!stopping.lost_nodes.empty() &&
        !budgets.may_lose(run.settings, stopping.lost_nodes.size())) {
        close_too_many_losses(step, stopping);
        return;
    }
    const int charge = DDP_RULE(1, ChargePerFailure, stopping.failure_count);
    budgets.restarts_used += has_failures ? charge : 0;
    budgets.node_losses_used +=
        DDP_RULE(static_cast<int>(stopping.lost_nodes.size()), LossNotCharged, 0);
    if (!release_leavers(step)) {
        enter_forming(step, cause_of_restart(step, stopping, has_failures));
    }
}

void no_longer_pending(Step& step, Stopping& stopping, const NodeId& id) {
    stopping.pending.erase(id);
    if (DDP_RULE(stopping.pending.empty(), StartWithoutProof, true)) {
        leave_stopping(step);
    }
}

/// A failure is reported as soon as it is known; what the worker left behind follows.
void complete_evidence(Step& step, Stopping& stopping, const NodeId& id,
                       const WorkerFailed& message) {
    for (TimedFailure& failure : stopping.failures) {
        if (failure.report.node == id && failure.report.local_rank == message.local_rank) {
            DDP_PROBE(evidence_completed);
            complete(failure.report.evidence, trimmed(message.evidence, step.options.limits));
        }
    }
}

/// The age, limited so that the moment lies within this generation, not before its start.
std::int64_t believed_age(const Step& step, Milliseconds age) {
    const Duration longest = step.now - step.run.current.started_at;
    return std::chrono::duration_cast<Milliseconds>(
               std::clamp(Duration(age), Duration::zero(), std::max(longest, Duration{})))
        .count();
}

}  // namespace

Stopping& enter_stopping(Step& step, StopCause cause, int signal, const std::string& why,
                         Milliseconds within) {
    Run& run = step.run;
    const Running running = std::get<Running>(run.phase);
    const bool has_time_to_save = DDP_RULE(is_drain(cause), GrowthKills, cause == StopCause::Leave);
    const Milliseconds grace =
        has_time_to_save ? run.settings.shutdown_timeout
                         : std::min(run.settings.failure_grace, run.settings.shutdown_timeout);
    const Limits& limits = step.options.limits;
    Stopping stopping;
    stopping.cause = cause;
    stopping.since = step.now;
    stopping.order = Stop{.generation = run.current.number,
                          .cause = cause,
                          .signal = signal,
                          .grace = grace,
                          .within = within,
                          .why = why};
    stopping.give_up_at = step.now + time_to_stop(stopping.order, limits);
    stopping.unfinished = running.unfinished;
    for (const Place& place : run.current.places) {
        // A member that left after finishing is in the map and no longer here.
        if (const auto node = run.nodes.find(place.node);
            node != run.nodes.end() && node->second.is_member()) {
            stopping.pending.insert(place.node);
        }
    }
    become(run, stopping);
    run.explain_at = step.now + limits.explain_every;
    trace(step, fmt::format("generation {} stops: {}", run.current.number.value(), why));
    publish(step, EventKind::Stop, fields_of(stopping.order));
    for (const NodeId& id : stopping.pending) {
        send(step, run.nodes.at(id), stopping.order);
    }
    write_behind(step);
    return std::get<Stopping>(run.phase);
}

Duration time_to_stop(const Stop& order, const Limits& limits) {
    const Milliseconds saving =
        order.cause == StopCause::Hang ? limits.stacks_timeout : Milliseconds::zero();
    return saving + order.grace + limits.unkillable_after + limits.stop_slack;
}

void rank_finished(Step& step, Stopping& stopping, const Node& node) {
    const bool is_whole = node.finished.size() == static_cast<std::size_t>(node.info.slots);
    if (is_whole && stopping.unfinished.erase(node.info.node) > 0) {
        DDP_PROBE(finished_while_stopping);
        write_behind(step);
    }
}

void rank_failed(Step& step, Stopping& stopping, Node& node, const WorkerFailed& message) {
    const NodeId& id = node.info.node;
    if (!node.failed.insert(message.local_rank).second) {
        complete_evidence(step, stopping, id, message);
        return;
    }
    stopping.failure_count += 1;
    // It cannot have failed before it was started, whatever its clock says.
    const Duration longest = step.now - step.run.current.started_at;
    const Duration age =
        std::clamp(Duration(message.evidence.age), Duration::zero(), std::max(longest, Duration{}));
    const Instant at = step.now - age;
    stopping.failures.push_back(TimedFailure{
        .at = at,
        .report = FailureReport{.generation = message.generation,
                                .rank = step.run.current.rank_of(id, message.local_rank),
                                .local_rank = message.local_rank,
                                .hostname = node.info.hostname,
                                .node = id,
                                .at = std::chrono::duration_cast<Milliseconds>(
                                    std::max(at - step.run.opened_at, Duration::zero())),
                                .evidence = trimmed(message.evidence, step.options.limits)}});
    publish_failure(step, stopping.failures.back());
    keep_earliest(stopping.failures, step.options.limits.failures_kept_max);
}

void member_emptied(Step& step, Stopping& stopping, Node& node, const Stopped& message) {
    if (!stopping.pending.contains(node.info.node)) {
        return;
    }
    node.info.store = message.store;
    trace(step, fmt::format("node {} is empty", node.info.hostname));
    publish(step, EventKind::Empty, node.info,
            {{"ended_ms_ago", believed_age(step, message.ended_age)},
             {"proven_ms_ago", believed_age(step, message.empty_age)}});
    no_longer_pending(step, stopping, NodeId(node.info.node));
}

void member_lost(Step& step, Stopping& stopping, const Node& node, Instant died_at,
                 const std::string& how) {
    const NodeId& id = node.info.node;
    const bool is_missed =
        stopping.unfinished.contains(id) || step.run.current.takes_store_along(id);
    if (is_missed && !node.leaving()) {
        DDP_PROBE(member_lost_while_stopping);
        stopping.lost_nodes.push_back(node.info.hostname);
        blame(step, id, node.info.hostname);
        if (stopping.loss_why.empty()) {
            stopping.loss_why = fmt::format("node {} {}", node.info.hostname, how);
        }
        stopping.cause = StopCause::Failure;
        // One that went later went while its workers were being stopped.
        stopping.is_explained_by_loss |= died_at <= stopping.since + step.options.limits.lease;
    }
    write_behind(step);
    no_longer_pending(step, stopping, id);
}

void lose_late_members(Step& step, const Stopping& stopping) {
    if (stopping.give_up_at > step.now) {
        return;
    }
    const std::set<NodeId> late = stopping.pending;
    for (const NodeId& id : late) {
        DDP_PROBE(node_stopped_too_late);
        // Its agent connects again and is fenced until its workers are gone.
        const std::string how = "did not end its workers in time";
        drop_connection(step, step.run.nodes.at(id), how);
        lose_node(step, id, how);
    }
}

}  // namespace ddprun::rdzv
