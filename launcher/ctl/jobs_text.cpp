#include "launcher/ctl/jobs_text.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/run_folder.hpp"
#include "base/printable.hpp"
#include "base/text_table.hpp"
#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/runs_text.hpp"

namespace ddprun::launcher {

namespace {

using nlohmann::ordered_json;

ordered_json member(const ordered_json& object, const char* name) {
    return object.is_object() && object.contains(name) ? object[name] : ordered_json();
}

std::string base_name(const std::string& path) {
    return path.substr(path.find_last_of('/') + 1);
}

/// The last one that any worker has told.
std::string last_step(const ordered_json& status) {
    std::optional<std::uint64_t> last;
    for (const ordered_json& worker : member(status, "workers")) {
        if (worker.is_object() && worker.contains("step") && worker["step"].is_number_unsigned()) {
            last = std::max(last.value_or(0), worker["step"].get<std::uint64_t>());
        }
    }
    return last ? std::to_string(*last) : "-";
}

TableRow row_of_job(const JobHere& job) {
    const std::string name = printable(base_name(job.folder), std::string::npos);
    if (!job.answer) {
        return {name, "-", "-", "-", "-", "-", "does not answer: " + job.answer.error().what};
    }
    const ordered_json status = ordered_json::parse(*job.answer, nullptr, false);
    const std::string waits_for = said(status, "waits_for");
    const std::string rendezvous = said(status, "rendezvous");
    return {name,
            base_name(said(status, "program")),
            said(status, "pid"),
            said(status, "generation"),
            last_step(status),
            rendezvous.empty() ? "-" : rendezvous,
            waits_for.empty() ? "-" : waits_for};
}

}  // namespace

std::string jobs_text(const std::vector<JobHere>& jobs) {
    std::vector<TableRow> rows = {
        {"RUN", "PROGRAM", "PID", "GENERATION", "STEP", "RENDEZVOUS", "WAITS FOR"}};
    for (const JobHere& job : jobs) {
        rows.push_back(row_of_job(job));
    }
    return table_text(rows);
}

std::string jobs_json(const std::vector<JobHere>& jobs) {
    std::string text;
    for (const JobHere& job : jobs) {
        if (job.answer) {
            text += *job.answer;
            continue;
        }
        const ordered_json object = {{"run", job.folder}, {"error", job.answer.error().what}};
        text += json_line(object);
    }
    return text;
}

std::string job_text(const std::string& answer) {
    const ordered_json status = ordered_json::parse(answer, nullptr, false);
    const ordered_json time = member(status, "time");
    std::string text =
        fmt::format("job {}: {}, pid {} on {}\n", said(status, "job"),
                    base_name(said(status, "program")), said(status, "pid"), said(status, "host"));
    const std::string stall = said(member(status, "stall"), "text");
    if (!stall.empty()) {
        text += fmt::format("  stalled {}\n", stall);
    }
    const std::string waits_for = said(status, "waits_for");
    if (!waits_for.empty()) {
        text += fmt::format("  waits   {}\n", waits_for);
    }
    text += fmt::format("  workers generation {}, {} here of {}\n", said(status, "generation"),
                        member(status, "workers").size(), said(status, "world_size"));
    const ordered_json ranks = member(status, "ranks");
    std::size_t index = 0;
    for (const ordered_json& worker : member(status, "workers")) {
        const std::string step = said(worker, "step");
        const ordered_json rank =
            ranks.is_array() && index < ranks.size() ? ranks[index] : ordered_json();
        const std::string pace = said(rank, "steps_per_s");
        const std::string activity = said(rank, "activity");
        text += fmt::format("          rank {}, pid {}{}{}{}\n", said(worker, "rank"),
                            said(worker, "pid"), step.empty() ? "" : ", step " + step,
                            pace.empty() ? "" : ", " + pace + " steps/s",
                            stall.empty() || activity.empty() ? "" : ", " + activity);
        ++index;
    }
    if (const ordered_json slowest = member(status, "slowest"); slowest.is_object()) {
        constexpr double kPercent = 100;
        text += fmt::format("  slowest rank {}; the others wait for it {:.0f} % of the time\n",
                            said(slowest, "rank"), kPercent * slowest.value("cost_share", 0.0));
    }
    text += lost_rows(status);
    if (const std::string saved = said(member(status, "checkpoint"), "text"); !saved.empty()) {
        text += fmt::format("  last checkpoint: {}\n", saved);
    }
    text += fmt::format("  time    {}\n", said(time, "text"));
    for (const ordered_json& restart : member(time, "restarts")) {
        text += fmt::format("  {}  {}\n", said(restart, "time"), said(restart, "text"));
    }
    text += fmt::format("  logs    {}\n", said(status, "run"));
    return text;
}

}  // namespace ddprun::launcher
