#include <string.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/check.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/protocol/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

std::string signal_name(int signal) {
    const char* name = sigabbrev_np(signal);
    return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace

std::string describe_end(const Evidence& evidence) {
    if (evidence.exec_errno) {
        return fmt::format("could not execute {}: {}", evidence.program,
                           strerrordesc_np(*evidence.exec_errno));
    }
    if (evidence.keeper_lost) {
        return "died with its keeper";
    }
    if (evidence.signal) {
        return fmt::format("was killed by {}{}", signal_name(*evidence.signal),
                           evidence.core_dumped ? " (core dumped)" : "");
    }
    return fmt::format("exited with code {}", evidence.exit_code.value_or(0));
}

int exit_code_of(const Evidence& evidence) {
    if (evidence.exec_errno) {
        return *evidence.exec_errno == ENOENT ? kExitNotFound : kExitNotExecutable;
    }
    if (evidence.signal) {
        return kExitSignalBase + *evidence.signal;
    }
    return evidence.exit_code.value_or(kExitInternal);
}

void close_failed(Step& step, const Stopping& stopping) {
    DDP_CHECK(!stopping.failures.empty());
    // The first by time; equal times are decided by rank, so that the order of arrival is not.
    const auto first = std::min_element(
        stopping.failures.begin(), stopping.failures.end(),
        [](const TimedFailure& left, const TimedFailure& right) {
            return std::tie(left.at, left.report.rank) < std::tie(right.at, right.report.rank);
        });
    Verdict verdict;
    verdict.kind = VerdictKind::Failed;
    verdict.exit_code = exit_code_of(first->report.evidence);
    verdict.text = fmt::format("rank {} on {} {}", first->report.rank.value(),
                               first->report.hostname, describe_end(first->report.evidence));
    verdict.first_failure = first->report;
    std::string& tail = verdict.first_failure->evidence.stderr_tail;
    if (tail.size() > step.options.limits.report_tail_bytes_max) {
        tail.erase(0, tail.size() - step.options.limits.report_tail_bytes_max);
    }
    verdict.failure_count = static_cast<int>(stopping.failures.size());
    close_run(step, std::move(verdict));
}

void close_run(Step& step, Verdict verdict) {
    Run& run = step.run;
    note(step, verdict.text);
    verdict.timeline = run.timeline;
    for (const auto& [id, node] : run.nodes) {
        send(step, node, verdict);
    }
    run.explain_at.reset();
    run.phase = Closed{.verdict = std::move(verdict), .at = step.now};
}

}  // namespace ddprun::rdzv
