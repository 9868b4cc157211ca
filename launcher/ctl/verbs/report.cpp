#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "base/text_table.hpp"
#include "launcher/ctl/bundle.hpp"
#include "launcher/ctl/ended_job.hpp"
#include "launcher/ctl/jobs_text.hpp"
#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct ReportOptions {
    std::string run;
    std::string node;
    std::string log_dir;
    std::string bundle;  ///< the file to write; empty: the report is printed
};

/// Every rank that failed in the last generation, a row each; empty: none did.
std::string failed_ranks_text(const nlohmann::json& report) {
    const auto failed = report.find("failed_ranks");
    if (failed == report.end() || failed->empty()) {
        return "";
    }
    std::vector<TableRow> rows{{"HOST", "RANK", "END", "AT", "CAUSE"}};
    for (const nlohmann::json& rank : *failed) {
        rows.push_back({said(rank, "hostname"), said(rank, "rank"), said(rank, "end"),
                        said(rank, "at"), said(rank, "cause")});
    }
    std::string text = table_text(rows, "  ");
    const auto all = report.find("failures");
    const bool is_counted = all != report.end() && all->is_number_unsigned();
    if (is_counted && all->get<std::uint64_t>() > failed->size()) {
        text += fmt::format("  and {} more\n", all->get<std::uint64_t>() - failed->size());
    }
    return text;
}

/// Puts a closed run's report.json (docs/logs.md) into words for people.
std::string report_text(const nlohmann::json& report) {
    std::string text = fmt::format("{}: {}: {}\n", said(report, "program"), said(report, "verdict"),
                                   said(report, "text"));
    text += fmt::format("  ended   {}, exit code {}; started {}\n", said(report, "ended"),
                        said(report, "exit_code"), said(report, "started"));
    if (report.contains("time")) {
        text += fmt::format("  time    {}\n", said(report["time"], "text"));
    }
    if (report.contains("timeline")) {
        for (const nlohmann::json& event : report["timeline"]) {
            text += fmt::format("  {}  {}\n", said(event, "at"), said(event, "text"));
        }
    }
    text += failed_ranks_text(report);
    const auto failure = report.find("first_failure");
    if (failure == report.end()) {
        return text;
    }
    for (const char* name : {"error", "kernel", "logs", "stacks"}) {
        const std::string told = said(*failure, name);
        text += told.empty() ? "" : fmt::format("  {:<7} {}\n", name, told);
    }
    const std::string words = field_of(*failure, "last_words");
    if (!words.empty()) {
        text += "  what the first failed worker said last:\n";
    }
    for (const std::string& line : CLI::detail::split(words, '\n')) {
        text += line.empty() ? "" : "    " + printable(line, std::string::npos) + "\n";
    }
    return text;
}

/// Prints the report of a closed job, which each node has; the state of each node of a live one.
int print_report(const ChosenJob& job) {
    for (const std::string& folder : job.folders) {
        const nlohmann::json report = report_of_run(folder);
        if (report.is_object()) {
            fmt::print("{}", report_text(report));
            return kExitSuccess;
        }
    }
    for (const std::string& folder : job.folders) {
        const Result<std::string> status = ask_run(folder);
        if (!status) {
            return complain_of_run(
                {ErrorCode::NotFound, fmt::format("{} has no report: its ddprun is gone, and got "
                                                  "no verdict; ddpctl events {} shows what it saw",
                                                  folder, folder)});
        }
        fmt::print("{}", job_text(*status));
    }
    return kExitSuccess;
}

int show_report(const ReportOptions& options) {
    const RunWanted wanted{.log_dir = log_dir_of(options.log_dir),
                           .name = options.run,
                           .node = options.node,
                           .takes_ended = true};
    if (options.bundle.empty()) {
        const Result<ChosenJob> chosen = choose_job(wanted);
        return chosen ? print_report(*chosen) : complain_of_run(chosen.error());
    }
    const Result<std::string> folder = choose_run(wanted);
    if (!folder) {
        return complain_of_run(folder.error());
    }
    const Result<std::string> bundle = bundle_of(*folder);
    if (!bundle) {
        return complain_of_run(bundle.error());
    }
    if (const Result<void> written = write_bundle(options.bundle, *bundle); !written) {
        fmt::print(stderr, "ddpctl: {}; name another file with --bundle\n", written.error().what);
        return kExitUsage;
    }
    fmt::print("{}: {} bytes; look through it before you pass it on: what workers wrote is in it\n",
               options.bundle, bundle->size());
    return kExitSuccess;
}

}  // namespace

Action declare_report(CLI::App& verb) {
    const auto options = std::make_shared<ReportOptions>();
    add_run(verb, options->run);
    add_value(verb, "--bundle", "FILE", options->bundle,
              "write all that helps there; only this user may read it; default: the report "
              "is printed");
    add_node(verb, options->node);
    add_log_dir(verb, options->log_dir);
    verb.footer(R"(
RUN is at work or over. Its report is printed or, while it is at work, how it
stands. FILE has its report, events, stacks, ends of logs, what its workers are
made of and what doctor says of this machine, as JSON
(docs/bundle.schema.json). It has no environment and no command line; what
workers wrote is in it.

examples:
  ddpctl report llama
  ddpctl report llama --bundle llama.json
)");
    return [options] { return show_report(*options); };
}

}  // namespace ddprun::launcher
