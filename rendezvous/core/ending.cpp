#include <string.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/core/step.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::uint64_t kNoStep = ~std::uint64_t{0};

/// Cuts at a character's beginning: what is sent must stay UTF-8.
void cut_text(std::string& text, std::size_t most) {
    if (text.size() <= most) {
        return;
    }
    while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) {
        --most;
    }
    text.resize(most);
}

Verdict failure_verdict(const Stopping& stopping) {
    const FailureReport& first = first_of(stopping).report;
    return Verdict{.kind = VerdictKind::Failed,
                   .text = fmt::format("rank {} on {} {}", first.rank.value(), first.hostname,
                                       describe_end(first.evidence)),
                   .first_failure = first,
                   .failure_count = stopping.failure_count};
}

}  // namespace

std::string describe_end(const Evidence& evidence) {
    if (evidence.exec_errno) {
        const char* why = strerrordesc_np(*evidence.exec_errno);
        return fmt::format("could not execute {}: {}", evidence.program,
                           why != nullptr ? why : "unknown error");
    }
    if (evidence.hung) {
        return fmt::format(
            "hung: no sign of life for {} s",
            std::chrono::duration_cast<std::chrono::seconds>(evidence.quiet_for).count());
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
    if (evidence.hung) {
        return kExitHung;
    }
    const int code = evidence.signal ? kExitSignalBase + *evidence.signal
                                     : evidence.exit_code.value_or(kExitInternal);
    return code >= 1 && code <= 255 ? code : kExitInternal;  // a failure never looks like success
}

bool is_earlier(const TimedFailure& left, const TimedFailure& right) {
    const auto step_of = [](const Evidence& evidence) {
        return evidence.hung ? evidence.progress.value_or(kNoStep) : 0;
    };
    const Evidence& one = left.report.evidence;
    const Evidence& other = right.report.evidence;
    return std::make_tuple(one.hung, step_of(one), left.at, left.report.rank) <
           std::make_tuple(other.hung, step_of(other), right.at, right.report.rank);
}

Evidence trimmed(Evidence evidence, const Limits& limits) {
    if (const std::size_t most = limits.report_tail_bytes_max; evidence.stderr_tail.size() > most) {
        evidence.stderr_tail.erase(0, evidence.stderr_tail.size() - most);
    }
    if (evidence.error_file.size() > limits.error_file_bytes_max) {
        evidence.error_file.clear();  // a part of a document is none
    }
    cut_text(evidence.program, limits.report_tail_bytes_max);
    cut_text(evidence.log_dir, limits.report_tail_bytes_max);
    cut_text(evidence.kernel_note, limits.report_tail_bytes_max);
    cut_text(evidence.stacks, limits.report_tail_bytes_max);
    return evidence;
}

void complete(Evidence& known, Evidence later) {
    known.core_dumped |= later.core_dumped;
    for (std::string Evidence::*text :
         {&Evidence::stderr_tail, &Evidence::error_file, &Evidence::kernel_note}) {
        if (!(later.*text).empty()) {
            known.*text = std::move(later.*text);
        }
    }
}

const TimedFailure& first_of(const Stopping& stopping) {
    DDP_CHECK(!stopping.failures.empty());
    if (DDP_BUG(FirstFailureByArrival)) {
        return stopping.failures.front();
    }
    return *std::min_element(stopping.failures.begin(), stopping.failures.end(), is_earlier);
}

void close_failed(Step& step, const Stopping& stopping) {
    Verdict verdict = failure_verdict(stopping);
    verdict.exit_code = exit_code_of(first_of(stopping).report.evidence);
    close_run(step, std::move(verdict));
}

void close_without_progress(Step& step, const Stopping& stopping) {
    Verdict verdict = failure_verdict(stopping);
    verdict.exit_code = kExitNoProgress;
    verdict.text = fmt::format("no progress: {} failures in a row at step {}, the last: {}",
                               step.run.failures_at_step, *step.run.failed_step, verdict.text);
    close_run(step, std::move(verdict));
}

void close_run(Step& step, Verdict verdict) {
    Run& run = step.run;
    await_record(step);
    note(step, fmt::format("closed: {}", verdict.text));
    verdict.timeline = run.timeline;
    for (const auto& [id, node] : run.nodes) {
        send(step, node, verdict);
        if (node.connection) {
            depart(step, *node.connection, id);
        }
    }
    run.explain_at.reset();
    become(run, Closed{.verdict = std::move(verdict), .at = step.now});
}

}  // namespace ddprun::rdzv
