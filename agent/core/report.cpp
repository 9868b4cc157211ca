#include "agent/core/report.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/limits.hpp"
#include "base/printable.hpp"

namespace ddprun::agent {

namespace {

constexpr std::size_t kColumns = 90;
constexpr std::size_t kLastLines = 15;
constexpr std::size_t kErrorLines = 4;

/// One piece of text, cut to what is left of a line after `indent` columns.
std::string fit(std::string_view text, std::size_t indent) {
    return printable(text, kColumns - indent);
}

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        if (!line.empty() && line.back() == '\r') {
            line.remove_suffix(1);
        }
        lines.push_back(line);
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

void add_field(std::string& out, std::string_view name, std::string_view value) {
    constexpr std::size_t kIndent = 13;
    out += fmt::format("  {:<9}  {}\n", name, fit(value, kIndent));
}

void add_last_words(std::string& out, const std::string& tail) {
    std::vector<std::string_view> lines = lines_of(tail);
    while (!lines.empty() && lines.back().empty()) {
        lines.pop_back();
    }
    if (lines.empty()) {
        return;
    }
    out += "  last words\n";
    const std::size_t first = lines.size() > kLastLines ? lines.size() - kLastLines : 0;
    for (std::size_t i = first; i < lines.size(); ++i) {
        // Tabs are common in traces and harmless.
        std::string line(lines[i]);
        for (std::size_t at = line.find('\t'); at != std::string::npos; at = line.find('\t')) {
            line.replace(at, 1, "    ");
        }
        const std::string shown = fit(line, 6);
        out += shown.empty() ? "    |\n" : fmt::format("    | {}\n", shown);
    }
}

void add_error(std::string& out, const rdzv::Evidence& evidence) {
    const std::string message = error_file_message(evidence.error_file);
    const std::vector<std::string_view> lines = lines_of(message);
    if (lines.empty() || evidence.stderr_tail.find(lines.front()) != std::string::npos) {
        return;  // nothing, or its last words say it already
    }
    for (std::size_t i = 0; i < std::min(lines.size(), kErrorLines); ++i) {
        add_field(out, i == 0 ? "error" : "", lines[i]);
    }
}

/// Which Python it was is often why it failed; of another program the headline says it.
bool is_python(std::string_view path) {
    return path.substr(path.find_last_of('/') + 1).starts_with("python");
}

void add_failure(std::string& out, const rdzv::Verdict& verdict) {
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
        add_field(out, "python", evidence.program);
    }
    if (evidence.progress.has_value()) {
        add_field(out, "last step", fmt::format("{}", *evidence.progress));
    }
    if (!evidence.log_dir.empty()) {
        add_field(out, "logs", evidence.log_dir);
    }
    if (!evidence.kernel_note.empty()) {
        add_field(out, "kernel", evidence.kernel_note);
    }
    if (!evidence.stacks.empty()) {
        add_field(out, "stacks", evidence.stacks);
    }
    add_error(out, evidence);
    add_last_words(out, evidence.stderr_tail);
    if (verdict.failure_count > 1) {
        const int others = verdict.failure_count - 1;
        add_field(out, "then",
                  fmt::format("{} other worker{} failed", others, others == 1 ? "" : "s"));
    }
}

void add_timeline(std::string& out, const std::vector<rdzv::TimelineEvent>& timeline) {
    constexpr std::size_t kIndent = 14;
    std::string_view before;
    for (const rdzv::TimelineEvent& event : timeline) {
        if (event.text == before) {
            continue;
        }
        before = event.text;
        const double seconds = static_cast<double>(event.at.count()) / 1000.0;
        out += fmt::format("{:>10}  {}\n", fmt::format("+{:.1f} s", seconds),
                           fit(event.text, kIndent));
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
            break;
    }
    return fmt::format("{} {}", program, verdict.text);
}

}  // namespace

std::string error_file_message(std::string_view content) {
    using nlohmann::json;
    constexpr int kDepthMax = static_cast<int>(Limits{}.json_depth_max);
    const json::parser_callback_t is_kept = [](int depth, json::parse_event_t /*event*/,
                                               json& /*parsed*/) { return depth <= kDepthMax; };
    const json file = json::parse(content, is_kept, false);
    if (!file.is_object() || !file.contains("message")) {
        return {};
    }
    const json& message = file["message"];
    if (message.is_string()) {
        return message.get<std::string>();
    }
    if (message.is_object() && message.contains("message") && message["message"].is_string()) {
        return message["message"].get<std::string>();
    }
    return {};
}

std::string format_verdict(const rdzv::Verdict& verdict, const std::string& program) {
    const bool is_good = verdict.kind == rdzv::VerdictKind::Succeeded;
    if (is_good && !has_something_happened(verdict)) {
        return {};
    }
    std::string out = fit(headline_of(verdict, program), 0) + "\n";
    if (verdict.first_failure.has_value()) {
        add_failure(out, verdict);
    }
    if (!is_good) {
        add_field(out, "exit code", fmt::format("{}", verdict.exit_code));
    }
    if (has_something_happened(verdict)) {
        add_timeline(out, verdict.timeline);
    }
    return out;
}

}  // namespace ddprun::agent
