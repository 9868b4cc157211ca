#include "rendezvous/core/first_failure.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/printable.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/wire/last_words.hpp"
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

/// Whole lines, the last ones; of a line that is longer its end.
void cut_to_last_lines(std::string& tail, std::size_t most) {
    if (tail.size() <= most) {
        return;
    }
    const std::size_t begin = tail.size() - most;
    const std::size_t end_before = tail.find('\n', begin - 1);
    tail.erase(0, end_before < tail.size() - 1 ? end_before + 1 : begin);
}

std::string end_in_short(const Evidence& evidence) {
    if (evidence.exec_errno) {
        return "not executed";
    }
    if (evidence.hung) {
        return "hung";
    }
    if (evidence.keeper_lost) {
        return "keeper died";
    }
    if (evidence.signal) {
        return signal_name(*evidence.signal) + (evidence.core_dumped ? " (core)" : "");
    }
    return fmt::format("exit code {}", evidence.exit_code.value_or(0));
}

std::string cause_in_short(const Evidence& evidence, const Limits& limits) {
    const CauseLine said = cause_line(evidence);
    std::string cause = printable(said.text, std::string::npos);
    if (evidence.exec_errno) {
        cause = std::generic_category().message(*evidence.exec_errno);
    } else if ((cause.empty() || said.is_stdouts_last) && !evidence.kernel_note.empty()) {
        cause = printable(evidence.kernel_note, std::string::npos);
    } else if (said.is_stdouts_last) {
        cause = "last on stdout: " + cause;
    }
    if (cause.size() > limits.failure_cause_bytes_max) {
        cut_text(cause, limits.failure_cause_bytes_max);
        cause += "…";
    }
    return cause;
}

}  // namespace

bool is_earlier(const TimedFailure& left, const TimedFailure& right) {
    const auto step_of = [](const Evidence& evidence) {
        return evidence.hung ? evidence.progress.value_or(kNoStep) : 0;
    };
    const Evidence& one = left.report.evidence;
    const Evidence& other = right.report.evidence;
    return std::make_tuple(one.hung, step_of(one), left.at, left.report.rank) <
           std::make_tuple(other.hung, step_of(other), right.at, right.report.rank);
}

const TimedFailure& first_of(const std::vector<TimedFailure>& failures) {
    DDP_CHECK(!failures.empty());
    return *DDP_RULE(std::min_element(failures.begin(), failures.end(), is_earlier),
                     FirstFailureByArrival, failures.begin());
}

void keep_earliest(std::vector<TimedFailure>& failures, std::size_t most) {
    if (failures.size() > most) {
        failures.erase(std::max_element(failures.begin(), failures.end(), is_earlier));
    }
}

std::string describe_end(const Evidence& evidence) {
    if (evidence.exec_errno) {
        return fmt::format("could not execute {}: {}", evidence.program,
                           std::generic_category().message(*evidence.exec_errno));
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

std::string describe_end_and_cause(const Evidence& evidence, const Limits& limits) {
    std::string text = describe_end(evidence);
    if (evidence.progress) {
        text += fmt::format(" at step {}", *evidence.progress);
    }
    const CauseLine cause = cause_line(evidence);
    std::string line = printable(cause.text, std::string::npos);
    if (line.empty()) {
        return text;
    }
    if (line.size() > limits.cause_bytes_max / 2) {
        cut_text(line, limits.cause_bytes_max / 2);
        line += "…";
    }
    return text + (cause.is_stdouts_last ? "; its last line on stdout: " : ": ") + line;
}

std::string describe_rank_and_cause(const FailureReport& failure, const Limits& limits) {
    return fmt::format("rank {} on {} {}", failure.rank.value(), failure.hostname,
                       describe_end_and_cause(failure.evidence, limits));
}

std::string describe_failure(const FailureReport& failure, const Limits& limits) {
    const Evidence& evidence = failure.evidence;
    std::string text = describe_rank_and_cause(failure, limits);
    if (!evidence.stacks.empty()) {
        text += "; stacks in " + printable(evidence.stacks, std::string::npos);
    }
    if (!evidence.log_dir.empty()) {
        text += "; logs in " + printable(evidence.log_dir, std::string::npos);
    }
    cut_text(text, limits.cause_bytes_max);
    return text;
}

std::vector<FailedRank> failed_ranks(std::vector<TimedFailure> failures, const Limits& limits) {
    std::sort(failures.begin(), failures.end(), is_earlier);
    failures.resize(std::min(failures.size(), limits.failures_shown_max));
    std::vector<FailedRank> ranks;
    for (const TimedFailure& failure : failures) {
        const FailureReport& report = failure.report;
        ranks.push_back({.hostname = report.hostname,
                         .rank = report.rank,
                         .end = end_in_short(report.evidence),
                         .exit_code = exit_code_of(report.evidence),
                         .at = report.at,
                         .cause = cause_in_short(report.evidence, limits)});
    }
    return ranks;
}

std::string without_digits(std::string text) {
    std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
    return text;
}

std::string likeness_of(const Evidence& evidence) {
    const bool is_somebodys_signal = evidence.signal && evidence.kernel_note.empty() &&
                                     (*evidence.signal == SIGKILL || *evidence.signal == SIGTERM ||
                                      *evidence.signal == SIGINT || *evidence.signal == SIGHUP);
    if (evidence.progress || evidence.hung || evidence.keeper_lost || is_somebodys_signal) {
        return {};
    }
    // Ranks, pids, addresses and times differ. An end without words is told apart by its number
    // alone.
    return without_digits(describe_end(evidence) + "\n" + cause_line(evidence).text) +
           fmt::format("\n{}", exit_code_of(evidence));
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

Evidence trimmed(Evidence evidence, const Limits& limits) {
    cut_to_last_lines(evidence.stderr_tail, limits.report_tail_bytes_max);
    cut_to_last_lines(evidence.stdout_tail, limits.report_tail_bytes_max);
    if (evidence.error_file.size() > limits.error_file_bytes_max) {
        evidence.error_file.clear();  // a part of a document is none
    }
    cut_text(evidence.program, limits.report_text_bytes_max);
    cut_text(evidence.log_dir, limits.report_text_bytes_max);
    cut_text(evidence.kernel_note, limits.report_text_bytes_max);
    cut_text(evidence.stacks, limits.report_text_bytes_max);
    return evidence;
}

void complete(Evidence& known, Evidence later) {
    known.core_dumped |= later.core_dumped;
    for (std::string Evidence::*text : {&Evidence::stderr_tail, &Evidence::stdout_tail,
                                        &Evidence::error_file, &Evidence::kernel_note}) {
        if (!(later.*text).empty()) {
            known.*text = std::move(later.*text);
        }
    }
}

}  // namespace ddprun::rdzv
