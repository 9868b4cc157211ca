#include "agent/watch/report.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "agent/watch/wall_clock.hpp"
#include "base/limits.hpp"
#include "base/printable.hpp"
#include "base/text_table.hpp"
#include "rendezvous/wire/last_words.hpp"

namespace ddprun::agent {

namespace {

constexpr std::size_t kLastLines = 15;
constexpr std::size_t kLastLinesOfStdout = 5;  ///< beside those of stderr: what else was going on

using Lines = std::vector<std::string>;

std::string shown(std::string_view text) {
    return printable(text, std::string_view::npos);
}

void add_field(std::string& out, std::string_view name, std::string_view value) {
    if (!value.empty()) {
        out += fmt::format("  {:<9}  {}\n", name, shown(value));
    }
}

/// A worker's lines from `first` on, each as it was written.
void add_quoted(std::string& out, std::string_view title, const Lines& lines, std::size_t first) {
    if (first >= lines.size()) {
        return;
    }
    out += fmt::format("  {}\n", title);
    for (std::size_t i = first; i < lines.size(); ++i) {
        out += lines[i].empty() ? "    |\n" : fmt::format("    | {}\n", shown(lines[i]));
    }
}

/// The last `count` lines, and of a traceback that ends in them all.
std::size_t first_shown(const Lines& lines, std::size_t count) {
    const std::size_t first = lines.size() > count ? lines.size() - count : 0;
    return std::min(first, rdzv::begin_of_traceback(lines));
}

/// All of `wanted` stand in `lines`, in this order; each perhaps with something before it, as
/// torch's `[rank0]: `.
bool contains(const Lines& lines, const Lines& wanted) {
    auto line = lines.begin();
    for (const std::string& one : wanted) {
        line = std::find_if(line, lines.end(),
                            [&one](const std::string& other) { return other.ends_with(one); });
        if (line == lines.end()) {
            return false;
        }
        ++line;
    }
    return true;
}

/// Adds the error of the worker's error file, unless its last words say it already.
void add_error(std::string& out, const rdzv::ErrorFile& error, const Lines& last_words) {
    const Lines message = rdzv::shown_lines(error.message);
    const Lines traceback = rdzv::shown_lines(error.traceback);
    const bool is_traceback_new = !traceback.empty() && !contains(last_words, traceback);
    if (!contains(last_words, message) && !(is_traceback_new && contains(traceback, message))) {
        for (std::size_t i = 0; i < message.size(); ++i) {
            add_field(out, i == 0 ? "error" : "", message[i]);
        }
    }
    if (is_traceback_new) {
        add_quoted(out, "error", traceback, 0);
    }
}

/// Which Python it was is often why it failed; of another program the headline says it.
bool is_python(std::string_view path) {
    return path.substr(path.find_last_of('/') + 1).starts_with("python");
}

/// Adds the last words of the first failed worker that this console has not shown.
void add_words(std::string& out, const rdzv::Evidence& evidence, const WordsShown& are_shown) {
    const Lines err = rdzv::shown_lines(evidence.stderr_tail);
    const Lines out_lines = rdzv::shown_lines(evidence.stdout_tail);
    const bool are_both = !err.empty() && !out_lines.empty();
    Lines said = err.empty() ? out_lines : err;
    said.erase(said.begin(),
               said.begin() + static_cast<std::ptrdiff_t>(first_shown(said, kLastLines)));
    add_error(out, rdzv::parse_error_file(evidence.error_file), said);
    if (are_both && !are_shown.out) {
        const std::size_t first =
            out_lines.size() > kLastLinesOfStdout ? out_lines.size() - kLastLinesOfStdout : 0;
        add_quoted(out, "last words on stdout", out_lines, first);
    }
    if (!(err.empty() ? are_shown.out : are_shown.err)) {
        add_quoted(out, are_both ? "last words on stderr" : "last words", said, 0);
    }
}

double in_seconds(Milliseconds time) {
    return static_cast<double>(time.count()) / 1000.0;
}

std::string time_of(Milliseconds at, const WallClock& clock) {
    return fmt::format("{} {:>10}", clock.is_one_day() ? clock.time(at) : clock.day_and_time(at),
                       fmt::format("+{:.1f} s", in_seconds(at)));
}

/// Every rank that failed in the last generation, the first one first.
void add_failed_ranks(std::string& out, const rdzv::Verdict& verdict, const WallClock& clock) {
    if (verdict.failures.empty()) {
        return;
    }
    constexpr std::string_view kRank = "rank";
    std::size_t columns = kRank.size();
    for (const rdzv::FailedRank& failed : verdict.failures) {
        columns = std::max(columns, fmt::formatted_size("{}", failed.rank.value()));
    }
    std::vector<TableRow> rows{
        {"host", fmt::format("{:>{}}", kRank, columns), "end", "time", "cause"}};
    for (const rdzv::FailedRank& failed : verdict.failures) {
        rows.push_back({failed.hostname, fmt::format("{:>{}}", failed.rank.value(), columns),
                        shown(failed.end), time_of(failed.at, clock), shown(failed.cause)});
    }
    out += table_text(rows, "  ");
    const int more = verdict.failure_count - static_cast<int>(verdict.failures.size());
    if (more > 0) {
        out += fmt::format("  and {} more\n", more);
    }
}

/// Adds the first failure and where to look.
void add_failure(std::string& out, const rdzv::FailureReport& failure) {
    const rdzv::Evidence& evidence = failure.evidence;
    add_field(out, "worker",
              fmt::format("rank {} (local rank {} on {}), generation {}{}", failure.rank.value(),
                          failure.local_rank.value(), failure.hostname, failure.generation.value(),
                          evidence.pid > 0 ? fmt::format(", pid {}", evidence.pid) : ""));
    add_field(out, "python", is_python(evidence.program) ? evidence.program : "");
    if (evidence.progress.has_value()) {
        add_field(out, "last step", fmt::format("{}", *evidence.progress));
    }
    add_field(out, "logs", evidence.log_dir);
    add_field(out, "kernel", evidence.kernel_note);
    add_field(out, "stacks", evidence.stacks);
}

/// Without the end: the headline says that.
void add_timeline(std::string& out, const rdzv::Verdict& verdict, const WallClock& clock) {
    const std::string end = "closed: " + verdict.text;
    std::string_view before = end;
    for (const rdzv::TimelineEvent& event : verdict.timeline) {
        if (event.text != before && event.text != end) {
            before = event.text;
            out += fmt::format("  {}  {}\n", time_of(event.at, clock), shown(event.text));
        }
    }
}

/// The newest of many; report.json has the others.
void add_time(std::string& out, const TimeSpent& spent) {
    const std::size_t most = Limits{}.restarts_shown_max;
    const std::vector<rdzv::Restart> restarts = spent.use.restarts(spent.now);
    if (restarts.empty()) {
        return;
    }
    add_field(out, "time", rdzv::shares_text(spent.use.shares(spent.now)));
    const std::size_t first = restarts.size() > most ? restarts.size() - most : 0;
    for (std::size_t i = first; i < restarts.size(); ++i) {
        add_field(out, "restart", rdzv::restart_text(restarts[i]));
    }
}

/// The default generation with its end is all that an undisturbed run has to report.
bool has_something_happened(const rdzv::Verdict& verdict) {
    return verdict.timeline.size() > 2;
}

/// The headline is about what happened; a long path would push that out of the line.
std::string headline_of(const rdzv::Verdict& verdict, const std::string& path) {
    const std::string program = path.substr(path.find_last_of('/') + 1);
    switch (verdict.kind) {
        case rdzv::VerdictKind::Succeeded:
            return fmt::format("{} finished: {}", program, verdict.text);
        case rdzv::VerdictKind::Failed:
            return fmt::format("{} failed: {}", program, verdict.text);
        case rdzv::VerdictKind::Stopped:
        case rdzv::VerdictKind::Incomplete:
        case rdzv::VerdictKind::Ended:
            break;
    }
    return fmt::format("{} {}", program, verdict.text);
}

}  // namespace

std::string format_verdict(const rdzv::Verdict& verdict, const std::string& program,
                           const HeardAt& heard, const WordsShown& are_shown,
                           const TimeSpent* spent) {
    const bool is_good = verdict.kind == rdzv::VerdictKind::Succeeded;
    if (is_good && !has_something_happened(verdict)) {
        return {};
    }
    const WallClock clock(verdict, heard);
    std::string out = shown(headline_of(verdict, program)) + "\n";
    add_failed_ranks(out, verdict, clock);
    if (verdict.first_failure.has_value()) {
        add_failure(out, *verdict.first_failure);
    }
    const std::string ended =
        clock.is_one_day() ? clock.time(clock.lasted()) : clock.day_and_time(clock.lasted());
    add_field(out, "run",
              fmt::format("{} to {} {}, {:.1f} s", clock.day_and_time(Milliseconds(0)), ended,
                          clock.zone(), in_seconds(clock.lasted())));
    if (spent != nullptr) {
        add_time(out, *spent);
    }
    if (!is_good) {
        add_field(out, "exit code", fmt::format("{}", verdict.exit_code));
    }
    if (has_something_happened(verdict)) {
        add_timeline(out, verdict, clock);
    }
    if (verdict.first_failure.has_value()) {
        add_words(out, verdict.first_failure->evidence, are_shown);
    }
    return out;
}

}  // namespace ddprun::agent
