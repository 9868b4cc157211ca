#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "rendezvous/wire/messages.hpp"

/// Which failure came first, and how failures are described. Pure values, independent of a run.
namespace ddprun::rdzv {

/// A failure and when it happened on the coordinator's clock.
struct TimedFailure {
    Instant at{};
    FailureReport report;
};

/// By time; equal times by rank, so that the order of arrival decides nothing. Hangs come after
/// deaths; among hangs, the one with the smallest last step comes first, if steps were told.
[[nodiscard]] bool is_earlier(const TimedFailure& left, const TimedFailure& right);
/// The earliest of `failures`, which are not empty.
[[nodiscard]] const TimedFailure& first_of(const std::vector<TimedFailure>& failures);
/// If there are more than `most`, drops the latest, whatever the order of arrival (S10, S11).
void keep_earliest(std::vector<TimedFailure>& failures, std::size_t most);

[[nodiscard]] std::string describe_end(const Evidence& evidence);  ///< "exited with code 17"
/// The same with who and where it was, the step, what it said last and where that can be read: one
/// printable line of at most Limits::cause_bytes_max.
[[nodiscard]] std::string describe_failure(const FailureReport& failure, const Limits& limits);
/// "exited with code 17: ValueError: boom"; as much as describe_failure() has of it.
[[nodiscard]] std::string describe_end_and_cause(const Evidence& evidence, const Limits& limits);
/// "rank 3 on gpu-07 exited with code 17: ValueError: boom".
[[nodiscard]] std::string describe_rank_and_cause(const FailureReport& failure,
                                                  const Limits& limits);
/// The earliest of `failures`, as the report's table has them: at most failures_shown_max.
[[nodiscard]] std::vector<FailedRank> failed_ranks(std::vector<TimedFailure> failures,
                                                   const Limits& limits);
/// Equal for two texts that differ only in numbers.
[[nodiscard]] std::string without_digits(std::string text);
/// Equal for two failures that are the same as far as can be told: same end, same last line but for
/// numbers. Empty if a next attempt may well go another way: a step had been reported, the worker
/// hung, or a signal from outside ended it.
[[nodiscard]] std::string likeness_of(const Evidence& evidence);
[[nodiscard]] int exit_code_of(const Evidence& evidence);  ///< never 0
/// The evidence as it may be kept and sent on: every field within Limits.
[[nodiscard]] Evidence trimmed(Evidence evidence, const Limits& limits);
/// Adds what a later report of the same end knows more: last words, error file, core, the kernel's
/// line. How and when the worker ended stay; nothing known is lost to a report that knows less.
void complete(Evidence& known, Evidence later);

}  // namespace ddprun::rdzv
