#include "agent/watch/report.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "agent/watch/wall_clock.hpp"
#include "base/limits.hpp"
#include "base/printable.hpp"
#include "base/utf8.hpp"
#include "rendezvous/wire/last_words.hpp"

namespace ddprun::agent {

namespace {

constexpr std::size_t kColumns = 79;  ///< fit into the usual terminal
constexpr std::size_t kLastLines = 15;
constexpr std::size_t kLastLinesOfStdout = 5;  ///< beside those of stderr: what else was going on

using Lines = std::vector<std::string>;

/// Perhaps in quotation marks, as Python's tracebacks have them.
bool begins_path(std::string_view text) {
    return text.starts_with('/') || text.starts_with("\"/");
}

/// `text` in pieces of at most `columns` characters: broken behind a blank where there is one in
/// the second half, else anywhere; but never in a path.
Lines wrapped(std::string_view text, std::size_t columns) {
    Lines pieces;
    while (!text.empty()) {
        std::size_t size = 0;
        std::size_t after_blank = 0;
        for (std::size_t count = 0; count < columns && size < text.size(); ++count) {
            size += std::max<std::size_t>(utf8_length(text.substr(size)), 1);
            if (text[size - 1] == ' ' && (count >= columns / 2 || begins_path(text.substr(size)))) {
                after_blank = size;
            }
        }
        if (size < text.size() && after_blank > 0) {
            size = after_blank;
        } else if (size < text.size() && begins_path(text)) {
            size = std::min(text.find(' '), text.size());
        }
        pieces.emplace_back(text.substr(0, size));
        text.remove_prefix(size);
        text.remove_prefix(text.starts_with(' ') ? 1 : 0);
    }
    return pieces;
}

std::string shown(std::string_view text) {
    return printable(text, std::string_view::npos);
}

/// `text` behind `begin`, and behind as many blanks where it goes on.
void add_wrapped(std::string& out, std::string_view begin, std::string_view text) {
    const Lines pieces = wrapped(shown(text), kColumns - begin.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        out += i == 0 ? std::string(begin) : std::string(begin.size(), ' ');
        out += pieces[i] + "\n";
    }
}

std::string field(std::string_view name) {
    return fmt::format("  {:<9}  ", name);
}

void add_field(std::string& out, std::string_view name, std::string_view value) {
    add_wrapped(out, field(name), value);
}

/// In one piece, to be copied.
void add_path(std::string& out, std::string_view name, std::string_view path) {
    if (!path.empty()) {
        out += field(name) + shown(path) + "\n";
    }
}

/// A worker's lines from `first` on. A line that goes on has a colon before it.
void add_quoted(std::string& out, std::string_view title, const Lines& lines, std::size_t first) {
    if (first >= lines.size()) {
        return;
    }
    out += fmt::format("  {}\n", title);
    for (std::size_t i = first; i < lines.size(); ++i) {
        const Lines pieces = wrapped(shown(lines[i]), kColumns - 6);
        out += pieces.empty() ? "    |\n" : "";
        for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
            out += fmt::format("    {} {}\n", piece == 0 ? '|' : ':', pieces[piece]);
        }
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

/// What the worker's error file says, unless its last words say it already.
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

void add_words(std::string& out, const rdzv::Evidence& evidence) {
    const Lines err = rdzv::shown_lines(evidence.stderr_tail);
    const Lines out_lines = rdzv::shown_lines(evidence.stdout_tail);
    const bool are_both = !err.empty() && !out_lines.empty();
    Lines said = err.empty() ? out_lines : err;
    said.erase(said.begin(),
               said.begin() + static_cast<std::ptrdiff_t>(first_shown(said, kLastLines)));
    add_error(out, rdzv::parse_error_file(evidence.error_file), said);
    if (are_both) {
        const std::size_t first =
            out_lines.size() > kLastLinesOfStdout ? out_lines.size() - kLastLinesOfStdout : 0;
        add_quoted(out, "last words on stdout", out_lines, first);
    }
    add_quoted(out, are_both ? "last words on stderr" : "last words", said, 0);
}

double in_seconds(Milliseconds time) {
    return static_cast<double>(time.count()) / 1000.0;
}

void add_failure(std::string& out, const rdzv::Verdict& verdict, const WallClock& clock) {
    const rdzv::FailureReport& failure = *verdict.first_failure;
    const rdzv::Evidence& evidence = failure.evidence;
    std::string where =
        fmt::format("rank {} (local rank {} on {}), generation {}", failure.rank.value(),
                    failure.local_rank.value(), failure.hostname, failure.generation.value());
    if (evidence.pid > 0) {
        where += fmt::format(", pid {}", evidence.pid);
    }
    add_field(out, "worker", where);
    if (is_python(evidence.program)) {
        add_path(out, "python", evidence.program);
    }
    if (failure.at > Milliseconds::zero()) {
        add_field(out, "time",
                  fmt::format("{} {}, {:.1f} s after the start", clock.day_and_time(failure.at),
                              clock.zone(), in_seconds(failure.at)));
    }
    if (evidence.progress.has_value()) {
        add_field(out, "last step", fmt::format("{}", *evidence.progress));
    }
    add_path(out, "logs", evidence.log_dir);
    if (!evidence.kernel_note.empty()) {
        add_field(out, "kernel", evidence.kernel_note);
    }
    add_path(out, "stacks", evidence.stacks);
    add_words(out, evidence);
    if (verdict.failure_count > 1) {
        const int others = verdict.failure_count - 1;
        add_field(out, "then",
                  fmt::format("{} other worker{} failed", others, others == 1 ? "" : "s"));
    }
}

void add_timeline(std::string& out, const std::vector<rdzv::TimelineEvent>& timeline,
                  const WallClock& clock) {
    std::string_view before;
    for (const rdzv::TimelineEvent& event : timeline) {
        if (event.text == before) {
            continue;
        }
        before = event.text;
        const std::string when =
            clock.is_one_day() ? clock.time(event.at) : clock.day_and_time(event.at);
        add_wrapped(
            out, fmt::format("  {} {:>10}  ", when, fmt::format("+{:.1f} s", in_seconds(event.at))),
            event.text);
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

/// The default generation with its end is all that an undisturbed run has to tell.
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
                           const HeardAt& heard, const TimeSpent* spent) {
    const bool is_good = verdict.kind == rdzv::VerdictKind::Succeeded;
    if (is_good && !has_something_happened(verdict)) {
        return {};
    }
    const WallClock clock(verdict, heard);
    std::string out;
    add_wrapped(out, "", headline_of(verdict, program));
    if (verdict.first_failure.has_value()) {
        add_failure(out, verdict, clock);
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
        add_timeline(out, verdict.timeline, clock);
    }
    return out;
}

}  // namespace ddprun::agent
