#include "rendezvous/core/closed.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/events/event_fields.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

void enter_closed(Step& step, Verdict verdict) {
    Run& run = step.run;
    await_record(step);
    note(step, fmt::format("closed: {}", verdict.text));
    publish(step, EventKind::Verdict, fields_of(verdict));
    verdict.timeline = run.timeline;
    for (const auto& [id, node] : run.nodes) {
        send(step, node, verdict);
        if (node.connection()) {
            depart(step, *node.connection(), id);
        }
    }
    run.explain_at.reset();
    run.hold.reset();
    become(run, Closed{.verdict = std::move(verdict), .at = step.now});
}

/// Last words that came after the stop are in its text: a member is empty only once they are sent.
Verdict failure_verdict(const Step& step, const Stopping& stopping) {
    const FailureReport& first = first_of(stopping.failures).report;
    return Verdict{.kind = VerdictKind::Failed,
                   .text = describe_rank_and_cause(first, step.options.limits),
                   .first_failure = first,
                   .failure_count = stopping.failure_count,
                   .failures = failed_ranks(stopping.failures, step.options.limits)};
}

}  // namespace

void close_succeeded(Step& step) {
    enter_closed(step, Verdict{.kind = VerdictKind::Succeeded,
                               .exit_code = kExitSuccess,
                               .text = "every rank exited 0"});
}

void close_failed(Step& step, const Stopping& stopping) {
    Verdict verdict = failure_verdict(step, stopping);
    verdict.exit_code = exit_code_of(first_of(stopping.failures).report.evidence);
    enter_closed(step, std::move(verdict));
}

void close_without_progress(Step& step, const Stopping& stopping) {
    Verdict verdict = failure_verdict(step, stopping);
    verdict.exit_code = kExitNoProgress;
    verdict.text =
        fmt::format("no progress: {} failures in a row at step {}, the last: {}",
                    step.run.budgets.failures_at_step, *step.run.budgets.failed_step, verdict.text);
    enter_closed(step, std::move(verdict));
}

void close_too_many_losses(Step& step, const Stopping& stopping) {
    enter_closed(step,
                 Verdict{.kind = VerdictKind::Incomplete,
                         .exit_code = kExitNodesMissing,
                         .text = fmt::format("node {} was lost and --max-node-losses {} is used up",
                                             stopping.lost_nodes.front(),
                                             step.run.settings.max_node_losses)});
}

void close_unprepared(Step& step, std::string text, int exit_code) {
    enter_closed(step, Verdict{.kind = VerdictKind::Failed,
                               .exit_code = exit_code == 0 ? int{kExitInternal} : exit_code,
                               .text = std::move(text)});
}

void close_incomplete(Step& step) {
    enter_closed(step, Verdict{.kind = VerdictKind::Incomplete,
                               .exit_code = kExitNodesMissing,
                               .text = fmt::format("gave up after {} s: {}",
                                                   step.run.settings.join_timeout.count() / 1000,
                                                   explain_run(step.run, step.now))});
}

void close_ended(Step& step, const std::string& by) {
    enter_closed(step, Verdict{.kind = VerdictKind::Ended,
                               .exit_code = kExitEnded,
                               .text = fmt::format("stopped by {}", by)});
}

void close_if_deserted(Step& step, const char* text) {
    const bool is_deserted = DDP_RULE(step.run.nodes.empty(), ClosedByOneExit, true);
    if (is_deserted && !is_closed(step.run)) {
        enter_closed(
            step, Verdict{.kind = VerdictKind::Stopped, .exit_code = kExitDrained, .text = text});
    }
}

bool is_answered_by_verdict(const Run& run, const Closed& closed, const Join& join, Instant now,
                            Milliseconds kept) {
    if (!join.run_token.empty() && join.run_token == run.token) {
        return true;
    }
    const bool is_decided = closed.verdict.kind == VerdictKind::Succeeded ||
                            closed.verdict.kind == VerdictKind::Failed ||
                            closed.verdict.kind == VerdictKind::Ended;
    return is_decided && now - closed.at < kept && !run.departed.contains(join.node);
}

void answer_with_verdict(Step& step, ConnectionId connection, const Join& message) {
    if (Node* known = step.run.nodes.get(message.node)) {
        drop_connection(step, *known, "this node reconnected");
        lose_node(step, message.node, "reconnected");
    }
    depart(step, connection, message.node);
    step.out.add(Send{connection, Accepted{.run_token = step.run.token}});
    const Closed& closed = std::get<Closed>(step.run.phase);
    Verdict verdict = closed.verdict;
    verdict.age = std::chrono::duration_cast<Milliseconds>(step.now - closed.at);
    DDP_RULE(step.out.add(Send{connection, std::move(verdict)}), VerdictNotRepeated, void());
}

}  // namespace ddprun::rdzv
