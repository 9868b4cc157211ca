#include "rendezvous/core/first_failure.hpp"

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
    if (DDP_BUG(FirstFailureByArrival)) {
        return failures.front();
    }
    return *std::min_element(failures.begin(), failures.end(), is_earlier);
}

void keep_earliest(std::vector<TimedFailure>& failures, std::size_t most) {
    if (failures.size() > most) {
        failures.erase(std::max_element(failures.begin(), failures.end(), is_earlier));
    }
}

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
