#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/contract/worker_options.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// How large one log file may become, and how many full ones are kept.
struct LogRotation {
    std::uint64_t file_bytes_max = 0;  ///< 0: no limit
    int kept_max = 0;                  ///< full files beside the one that is written; 0: all

    bool operator==(const LogRotation&) const = default;
};

/// Which streams of a worker are shown where ddprun's own lines go.
struct WordsShown {
    bool out = false;
    bool err = false;
};

struct OutputOptions {
    Limits limits;
    LogRotation rotation;  ///< of the workers' log files
    std::string log_root;  ///< `<log-dir>/<job>_<8 hex>`; empty: no by-rank links
    std::string program;   ///< for run.json, as is the next
    std::string job;
    std::string rendezvous;               ///< that of SupervisorOptions; for run.json, too
    std::map<int, OutputChoice> console;  ///< by local rank; those not listed have the defaults
    RanksFilter ranks_filter;
    /// Tee'd lines with one of these texts are also kept in filtered_stdout.log or
    /// filtered_stderr.log beside the workers' folders, with torchrun's prefix.
    std::vector<std::string> stdout_filters;
    std::vector<std::string> stderr_filters;
    bool prefixes = false;       ///< every console line starts with `[hostname rank] `
    bool draws = false;          ///< a console that is a terminal shows what Screen makes of all
    bool has_live_line = false;  ///< the job's progress stays below all else there
    bool folds = true;           ///< there, equal lines of several ranks are one
    std::string prefix_host;     ///< in prefixes there; empty: ranks alone
    bool is_json = false;        ///< console lines are JsonLine's instead, without any prefix
    std::string hostname;
    std::string role = "default";
    /// torchrun's TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE for tee'd streams; empty: its default,
    /// `[${role_name}${local_rank}]:`.
    std::string prefix_template;
    /// Tee'd lines have it in place of the prefix that `prefixes` asks for.
    bool template_wins = false;
    int console_out = 1;  ///< duplicated by the constructor, never closed or changed
    int console_err = 2;
    /// Makes pseudo-terminals; tests put another file in its place.
    std::string terminal_maker = "/dev/ptmx";
    /// This rank has the terminal that is stdin and the console: a controlling pseudo-terminal like
    /// it, whatever its OutputChoice. If unset, no rank has it.
    std::optional<Rank> debug;
};

}  // namespace ddprun::agent
