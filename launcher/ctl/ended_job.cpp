#include "launcher/ctl/ended_job.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/event_file.hpp"
#include "agent/output/run_folder.hpp"
#include "base/os/read_files.hpp"
#include "base/printable.hpp"
#include "launcher/ctl/event_text.hpp"
#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/runs_text.hpp"
#include "rendezvous/wire/json_text.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;
using agent::RunState;
using nlohmann::ordered_json;

constexpr std::size_t kFailedShown = 8;  ///< --json has all
constexpr std::size_t kWordsColumns = 160;
constexpr std::size_t kReportBytesMax = std::size_t{16} << 20;

std::string last_part(const std::string& path) {
    return path.substr(path.find_last_of('/') + 1);
}

std::optional<std::uint64_t> natural(const ordered_json& object, const char* name) {
    const auto field = object.is_object() ? object.find(name) : object.end();
    return field != object.end() && field->is_number_integer() && field->get<std::int64_t>() >= 0
               ? std::optional(field->get<std::uint64_t>())
               : std::nullopt;
}

agent::FoundRun run_at(const std::string& folder) {
    std::error_code failure;
    const fs::path path = fs::weakly_canonical(folder, failure);
    return agent::run_in(path.string())
        .value_or(agent::FoundRun{.path = folder, .name = last_part(folder), .note = {}});
}

/// The end of one node, as the events of that node report it.
struct Told {
    std::uint64_t generation = 0;
    std::uint64_t world_size = 0;
    std::uint64_t base_rank = 0;
    std::uint64_t slots = 0;
    std::optional<std::uint64_t> last_step;
    std::vector<ordered_json> failed;  ///< of that generation, in order
    ordered_json last;                 ///< the last event; null: none
};

/// Puts what a worker said last beside its failure.
void add_words(std::vector<ordered_json>& failed, const ordered_json& event) {
    for (ordered_json& one : failed) {
        if (one.value("rank", -1) == event.value("rank", -1)) {
            one["text"] = field_of(event, "text");
        }
    }
}

void take_event(const ordered_json& event, Told& told) {
    const std::string kind = field_of(event, "event");
    if (const auto step = natural(event, "step")) {
        told.last_step = std::max(told.last_step.value_or(0), *step);
    }
    if (kind == "begun") {
        told.slots = natural(event, "workers").value_or(0);
    } else if (kind == "formed") {
        told.generation = natural(event, "generation").value_or(0);
        told.world_size = natural(event, "workers").value_or(0);
        told.base_rank = natural(event, "base_rank").value_or(0);
        told.failed.clear();
    } else if (kind == "failure") {
        ordered_json failed = event;
        for (const char* name : {"v", "seq", "mono_ns", "event"}) {
            failed.erase(name);
        }
        failed["cause"] = end_text(nlohmann::json(event));
        told.failed.push_back(std::move(failed));
    } else if (kind == "last_words") {
        add_words(told.failed, event);
    }
    told.last = event;
}

Told read_events(const std::string& folder) {
    Told told;
    std::ifstream file(folder + "/" + agent::kEventsName);
    for (std::string line; std::getline(file, line);) {
        const ordered_json event = ordered_json::parse(line, nullptr, false);
        if (event.is_object() && event.contains("event")) {
            take_event(event, told);
        }
    }
    return told;
}

/// The first failure of the job, which may be on another machine.
void add_first_failure(const ordered_json& report, std::vector<ordered_json>& failed) {
    const auto found = report.is_object() ? report.find("first_failure") : report.end();
    if (found == report.end()) {
        return;
    }
    const bool is_known =
        std::any_of(failed.begin(), failed.end(), [&found](const ordered_json& one) {
            return one.value("rank", -1) == found->value("rank", -2);
        });
    if (is_known) {
        return;
    }
    ordered_json first = {{"time", field_of(*found, "at")}};
    for (const char* name : {"generation", "rank", "local_rank", "exit_code", "signal",
                             "signal_name", "exec_errno", "pid"}) {
        if (found->contains(name)) {
            first[name] = (*found)[name];
        }
    }
    first["host"] = field_of(*found, "hostname");
    if (found->contains("last_step")) {
        first["step"] = (*found)["last_step"];
    }
    for (const char* name : {"kernel", "stacks", "logs"}) {
        if (!field_of(*found, name).empty()) {
            first[name] = (*found)[name];
        }
    }
    for (const char* name : {"core_dumped", "keeper_lost", "hung"}) {
        if (found->value(name, false)) {
            first[name] = true;
        }
    }
    first["cause"] = end_text(nlohmann::json(first));
    failed.insert(failed.begin(), std::move(first));
}

ordered_json node_json(const agent::FoundRun& run, const Told& told) {
    ordered_json node = {{"host", run.note.hostname},   {"run", run.path},
                         {"pid", run.note.pid},         {"state", state_name(run.state)},
                         {"base_rank", told.base_rank}, {"slots", told.slots}};
    if (run.note.exit_code) {
        node["exit_code"] = *run.note.exit_code;
    }
    if (run.note.ended) {
        node["ended_ms"] = run.note.ended->count();
    }
    agent::add_lost(node, run.note.lost);
    return node;
}

/// The flag that names the node of `failed` to `ddpctl logs`; none: its logs are elsewhere.
std::optional<std::string> node_with(const ordered_json& nodes, const ordered_json& failed) {
    for (const ordered_json& node : nodes) {
        if (field_of(failed, "logs").starts_with(field_of(node, "run") + "/")) {
            return nodes.size() == 1 ? "" : " --node " + field_of(node, "host");
        }
    }
    return std::nullopt;
}

/// The commands that the user would type next.
ordered_json next_commands(const ordered_json& job, const std::string& run, bool has_report,
                           const std::string& log_dir) {
    const std::string where = log_dir.empty() ? "" : " --log-dir " + log_dir;
    ordered_json next = ordered_json::array();
    if (has_report) {
        next.push_back(fmt::format("ddpctl report {}{}", run, where));
    }
    for (const ordered_json& failed : job["failed"]) {
        if (const std::optional<std::string> node = node_with(job["nodes"], failed)) {
            next.push_back(fmt::format("ddpctl logs --rdzv-id {}{} --rank {} -n 50{}",
                                       field_of(job, "job"), *node, field_of(failed, "rank"),
                                       where));
            break;
        }
    }
    if (!has_report) {
        next.push_back(fmt::format("ddpctl events {}{}", run, where));
    }
    next.push_back(fmt::format("ddpctl page {}{}", run, where));
    return next;
}

}  // namespace

nlohmann::json report_of_run(const std::string& folder) {
    return rdzv::parse_shallow_json(
        read_beginning(folder + "/report.json", kReportBytesMax).value_or(""));
}

ordered_json ended_job(const std::vector<std::string>& folders, const std::string& log_dir) {
    std::vector<agent::FoundRun> runs;
    for (const std::string& folder : folders) {
        runs.push_back(run_at(folder));
    }
    const agent::FoundRun& newest = runs.front();
    const ordered_json report = report_of_run(newest.path);
    ordered_json nodes = ordered_json::array();
    Told all;
    for (const agent::FoundRun& run : runs) {
        Told told = read_events(run.path);
        nodes.push_back(node_json(run, told));
        all.generation = std::max(all.generation, told.generation);
        all.world_size = std::max(all.world_size, told.world_size);
        if (told.last_step) {
            all.last_step = std::max(all.last_step.value_or(0), *told.last_step);
        }
        all.failed.insert(all.failed.end(), told.failed.begin(), told.failed.end());
        all.last = all.last.is_null() ? std::move(told.last) : std::move(all.last);
    }
    std::stable_sort(all.failed.begin(), all.failed.end(), [](const auto& a, const auto& b) {
        return field_of(a, "time") < field_of(b, "time");
    });
    add_first_failure(report, all.failed);

    ordered_json job = {{"v", 1},
                        {"ended", newest.state == RunState::Over || newest.state == RunState::Dead},
                        {"state", state_name(newest.state)},
                        {"job", newest.note.job},
                        {"program", newest.note.program},
                        {"host", newest.note.hostname},
                        {"run", newest.path},
                        {"started_ms", newest.note.started.count()}};
    if (newest.note.ended) {
        job["ended_ms"] = newest.note.ended->count();
    }
    if (report.is_object()) {
        job["verdict"] = report.value("verdict", "");
        job["exit_code"] = report.value("exit_code", 0);
        job["text"] = report.value("text", "");
    } else if (newest.note.exit_code) {
        job["exit_code"] = *newest.note.exit_code;
        job["text"] = newest.note.text;
    }
    job["generation"] = all.generation;
    job["world_size"] = all.world_size;
    if (all.last_step) {
        job["last_step"] = *all.last_step;
    }
    job["failed"] = std::move(all.failed);
    if (report.is_object() && report.contains("time")) {
        job["time"] = report["time"];
    }
    if (!all.last.is_null()) {
        job["last_event"] = std::move(all.last);
    }
    if (!newest.note.rendezvous.empty()) {
        job["rendezvous"] = newest.note.rendezvous;
    }
    job["nodes"] = std::move(nodes);
    job["next"] = next_commands(job, newest.name, report.is_object(), log_dir);
    return job;
}

namespace {

std::optional<Milliseconds> time_in(const ordered_json& object, const char* name) {
    const auto ms = natural(object, name);
    return ms ? std::optional(Milliseconds(static_cast<std::int64_t>(*ms))) : std::nullopt;
}

/// How it ended.
std::string headline_of(const ordered_json& job) {
    const std::string state = field_of(job, "state");
    if (state == "killed") {
        return "its ddprun was killed, and has left no verdict";
    }
    if (state != "over") {
        return fmt::format("whether it runs cannot be known here; its ddprun was on {}",
                           said(job, "host"));
    }
    const std::string text = said(job, "text");
    return fmt::format("over, exit code {}: {}", said(job, "exit_code"),
                       text.empty() ? "its ddprun has left without a verdict" : text);
}

std::string when_text(const ordered_json& job) {
    const std::optional<Milliseconds> ended = time_in(job, "ended_ms");
    const std::optional<Milliseconds> started = time_in(job, "started_ms");
    if (!ended) {
        const std::string last = job.contains("last_event") ? job["last_event"].dump() : "";
        return fmt::format("  started {}\n{}", run_time_text(started),
                           last.empty() ? "" : "  last    " + event_text(last) + "\n");
    }
    return fmt::format("  ended   {}, started {}\n", run_time_text(ended), run_time_text(started));
}

std::string failed_text(const ordered_json& failed) {
    std::string text = fmt::format("rank {} on {} {}", said(failed, "rank"), said(failed, "host"),
                                   said(failed, "cause"));
    if (const std::string step = said(failed, "step"); !step.empty()) {
        text += ", last step " + step;
    }
    if (const std::string kernel = said(failed, "kernel"); !kernel.empty()) {
        text += "; " + kernel;
    }
    if (const std::string words = field_of(failed, "text"); !words.empty()) {
        text += ": " + printable(words, kWordsColumns);
    }
    return text;
}

}  // namespace

std::string ended_job_text(const ordered_json& job) {
    std::string text = fmt::format("job {}: {}\n", said(job, "job"), headline_of(job));
    text += when_text(job);
    text += fmt::format("  workers {}, generation {}, {} ranks\n", last_part(said(job, "program")),
                        said(job, "generation"), said(job, "world_size"));
    const ordered_json& failed = job["failed"];
    for (std::size_t i = 0; i < std::min(failed.size(), kFailedShown); ++i) {
        text += fmt::format("  failed  {}\n", failed_text(failed[i]));
    }
    if (failed.size() > kFailedShown) {
        text += fmt::format("          and {} more\n", failed.size() - kFailedShown);
    }
    if (job.contains("last_step")) {
        text += fmt::format("  step    {} was the last\n", said(job, "last_step"));
    }
    if (job.contains("time")) {
        text += fmt::format("  time    {}\n", said(job["time"], "text"));
    }
    for (const ordered_json& node : job["nodes"]) {
        text += fmt::format("  logs    {} of {}", said(node, "run"), said(node, "host"));
        if (job["nodes"].size() > 1 && node.contains("exit_code")) {
            text += fmt::format(", exit code {}", said(node, "exit_code"));
        }
        text += "\n";
        text += lost_rows(node);
    }
    const char* label = "next";
    for (const ordered_json& command : job["next"]) {
        text += fmt::format("  {:<7} {}\n", label, command.get<std::string>());
        label = "";
    }
    return text;
}

}  // namespace ddprun::launcher
