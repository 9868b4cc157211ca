#pragma once

#include <cstdint>
#include <string>

#include "agent/contract/output_options.hpp"
#include "base/instant.hpp"
#include "rendezvous/events/time_use.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// When a verdict was heard.
struct HeardAt {
    std::int64_t unix_ms = 0;
    int utc_offset_s = 0;  ///< of the times that people read
};

/// The use of this node's time until `now`.
struct TimeSpent {
    const rdzv::TimeUse& use;
    Instant now{};
};

/// The report of a closed run, for people: whole lines. No line is wrapped or cut. A failure is
/// reported with its first cause, a table of the ranks that failed, where to look and, at the end,
/// the last words, unless `are_shown` says that the console has them. A success is reported only if
/// something happened on the way, otherwise the result is empty. `program` is what the user called
/// it. If the run was restarted, `spent` is shown.
[[nodiscard]] std::string format_verdict(const rdzv::Verdict& verdict, const std::string& program,
                                         const HeardAt& heard, const WordsShown& are_shown = {},
                                         const TimeSpent* spent = nullptr);

/// The same as one JSON object for programs: `<log-dir>/<job>/report.json`. docs/logs.md lists
/// its fields. Bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string verdict_json(const rdzv::Verdict& verdict, const std::string& program,
                                       const HeardAt& heard, const TimeSpent* spent = nullptr);

/// An error file in torchrun's format about the run's first failure: the failed worker's own where
/// it wrote one, else one with `verdict.text` and `unix_seconds`. For a caller that has set
/// TORCHELASTIC_ERROR_FILE.
[[nodiscard]] std::string error_file_of(const rdzv::Verdict& verdict, std::int64_t unix_seconds);

}  // namespace ddprun::agent
