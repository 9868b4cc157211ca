#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace ddprun::launcher {

/// The question that `ddpctl logs` is asked.
struct LogsQuestion {
    std::string log_dir;
    std::string job;                          ///< empty: the newest run, whichever job's
    std::string node;                         ///< empty: whichever of the job's is the newest
    std::vector<int> ranks;                   ///< empty: all of this node
    std::optional<std::uint64_t> generation;  ///< none: each rank's newest worker; not with follows
    std::string pattern;  ///< extended regular expression: only lines with it; empty: all
    std::optional<std::size_t> last_lines;  ///< of each log, to begin with; none: all
    bool follows = false;  ///< until the run is over, or its writer or our reader is gone
    std::string run;       ///< its folder, in place of the first three; empty: not given
    std::string host;      ///< of each line, which begins with `[rank host] `; empty: not told
    std::size_t line_bytes_max = 0;  ///< 0: Limits::console_line_bytes_max
    int until_fd = -1;               ///< following ends when this does, without a message
};

/// Writes what the newest workers of a run on this node have written, or those of one generation:
/// their stdout to `out`, their stderr to `err`; of several ranks in whole lines behind `[rank] `.
/// When it follows, a rank that is started again is followed to its new logs, until the run has its
/// verdict or the ddprun that writes it is gone; then a line on `err` says so. The kernel wakes it
/// (inotify, a lock on the run's folder), so a run is followed on the machine that writes it, not
/// over a network file system. Fails with NotFound if there is no such run, generation or rank
/// (of the folder `run`: then nothing is written), with InvalidArgument if the pattern is none.
[[nodiscard]] Result<void> show_logs(const LogsQuestion& question, std::FILE* out, std::FILE* err);

}  // namespace ddprun::launcher
