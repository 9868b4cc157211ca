#include "launcher/ctl/status_here.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/status_text.hpp"

namespace ddprun::launcher {

bool has_jobs(const StatusHere& here) {
    return !here.runs.empty() ||
           std::any_of(here.rendezvous.begin(), here.rendezvous.end(),
                       [](const auto& heard) { return !heard.answer.reply.jobs.empty(); });
}

std::string status_here_text(const StatusHere& here, const std::string& usual) {
    std::string text;
    const bool is_one = here.rendezvous.size() == 1 && here.runs.empty();
    for (const StatusHere::Heard& heard : here.rendezvous) {
        if (heard.answer.reply.jobs.empty()) {
            continue;
        }
        text += text.empty() ? "" : "\n";
        if (!is_one || heard.place != usual) {
            text += fmt::format("rendezvous {}\n", heard.place);
        }
        text += status_text(heard.answer.reply);
    }
    for (const JobHere& run : here.runs) {
        text += text.empty() ? "" : "\n";
        text += run.answer
                    ? job_text(*run.answer)
                    : fmt::format("{} does not answer: {}\n", run.folder, run.answer.error().what);
    }
    return text;
}

std::string status_here_json(const StatusHere& here) {
    using nlohmann::ordered_json;
    ordered_json all = {
        {"type", rdzv::StatusReply::kType}, {"jobs", ordered_json::array()}, {"jobs_left_out", 0}};
    int left_out = 0;
    for (const StatusHere::Heard& heard : here.rendezvous) {
        const ordered_json body = ordered_json::parse(heard.answer.body, nullptr, false);
        const auto jobs = body.find("jobs");
        for (ordered_json job : jobs == body.end() ? ordered_json::array() : *jobs) {
            job["rendezvous"] = heard.place;
            all["jobs"].push_back(std::move(job));
        }
        left_out += heard.answer.reply.jobs_left_out;
    }
    all["jobs_left_out"] = left_out;
    for (const JobHere& run : here.runs) {
        ordered_json told = ordered_json::parse(run.answer ? *run.answer : "", nullptr, false);
        if (told.is_discarded()) {
            told = {{"run", run.folder},
                    {"error", run.answer ? "what it says is no JSON" : run.answer.error().what}};
        }
        all["runs"].push_back(std::move(told));
    }
    return json_line(all);
}

}  // namespace ddprun::launcher
