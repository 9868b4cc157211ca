#include "launcher/ctl/runs_text.hpp"

#include <array>
#include <ctime>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "base/text_table.hpp"
#include "launcher/ctl/json_field.hpp"
#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::launcher {

namespace {

using agent::FoundRun;
using agent::RunState;

constexpr std::size_t kProgramColumns = 24;
constexpr std::size_t kTextColumns = 60;
constexpr std::size_t kHostColumns = 24;

constexpr std::array<std::pair<std::string_view, RunState>, 5> kRunStateNames = {{
    {"running", RunState::Held},
    {"over", RunState::Over},
    {"killed", RunState::Dead},
    {"elsewhere", RunState::Elsewhere},
    {"unclear", RunState::Unclear},
}};

/// When the run ended, or its state; the machine, if only that machine knows of the run.
std::string ended_text(const FoundRun& run) {
    if (run.state == RunState::Over) {
        return run_time_text(run.note.ended);
    }
    return run.state == RunState::Elsewhere ? "? on " + printable(run.note.hostname, kHostColumns)
                                            : state_name(run.state);
}

/// How it ended, and what its logs lack.
std::string why_text(const agent::RunNote& note) {
    const std::string text = printable(note.text, kTextColumns);
    const std::string lost = printable(agent::lost_text(note.lost), std::string::npos);
    return text + (text.empty() || lost.empty() ? "" : "; ") + lost;
}

TableRow row_of_run(const FoundRun& run) {
    const std::string& path = run.note.program;
    const std::string program = path.substr(path.find_last_of('/') + 1);
    return {printable(run.name, std::string::npos),
            program.empty() ? "-" : printable(program, kProgramColumns),
            run_time_text(run.note.started),
            ended_text(run),
            run.note.exit_code ? std::to_string(*run.note.exit_code) : "-",
            why_text(run.note)};
}

}  // namespace

std::string run_time_text(std::optional<Milliseconds> time) {
    if (!time) {
        return "-";
    }
    const std::time_t seconds = time->count() / 1000;
    return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(seconds));
}

std::string state_name(RunState state) {
    return std::string(rdzv::word_of(state, kRunStateNames));
}

std::string lost_rows(const nlohmann::ordered_json& told) {
    std::string rows;
    for (const agent::LostLog& lost : agent::lost_in(nlohmann::json(told))) {
        rows += fmt::format("  lost    {}\n", printable(agent::lost_text(lost), std::string::npos));
    }
    return rows;
}

std::string runs_text(const std::vector<FoundRun>& runs) {
    std::vector<TableRow> rows = {{"RUN", "PROGRAM", "STARTED", "ENDED", "EXIT", "WHY"}};
    for (const FoundRun& run : runs) {
        rows.push_back(row_of_run(run));
    }
    return table_text(rows);
}

std::string runs_json(const std::vector<FoundRun>& runs) {
    std::string text;
    for (const FoundRun& run : runs) {
        using nlohmann::ordered_json;
        ordered_json object = agent::run_note_json(run.note);
        object["run"] = run.path;
        object["state"] = state_name(run.state);
        text += json_line(object);
    }
    return text;
}

}  // namespace ddprun::launcher
