#pragma once

#include <cstdint>
#include <string>

#include "base/instant.hpp"
#include "rendezvous/events/time_use.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// When a verdict was heard.
struct HeardAt {
    std::int64_t unix_ms = 0;
    int utc_offset_s = 0;  ///< of the times that people read
};

/// Where the time of this node went until `now`.
struct TimeSpent {
    const rdzv::TimeUse& use;
    Instant now{};
};

/// The report of a closed run, for a terminal: whole lines. Nothing in it is cut: what is wider
/// than 79 columns goes on in the next line, but for paths, which stand in one piece. A failure is
/// told with its first cause, where to look and its last words; a success only if something
/// happened on the way, otherwise the result is empty. `program` is what the user called it. Of a
/// run that was restarted `spent` is shown, if it is there.
[[nodiscard]] std::string format_verdict(const rdzv::Verdict& verdict, const std::string& program,
                                         const HeardAt& heard, const TimeSpent* spent = nullptr);

/// The same as one JSON object for programs: `<log-dir>/<job>/report.json`. docs/logs.md lists
/// its fields. Bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string verdict_json(const rdzv::Verdict& verdict, const std::string& program,
                                       const HeardAt& heard, const TimeSpent* spent = nullptr);

/// An error file in torchrun's format about the run's first failure: the failed worker's own where
/// it wrote one, else one with `verdict.text` and `unix_seconds`. For whoever started ddprun with
/// TORCHELASTIC_ERROR_FILE.
[[nodiscard]] std::string error_file_of(const rdzv::Verdict& verdict, std::int64_t unix_seconds);

}  // namespace ddprun::agent
