#include "agent/output/run_folder.hpp"
#include "launcher/ctl/runs_text.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct RunsOptions {
    std::string job;
    std::string log_dir;
    bool wants_json = false;
};

int show_runs(const RunsOptions& options) {
    const std::string log_dir = log_dir_of(options.log_dir);
    const auto found = agent::runs_in(log_dir, options.job);
    if (options.wants_json) {
        fmt::print("{}", runs_json(found));
    } else if (!found.empty()) {
        fmt::print("{}", runs_text(found));
    } else {
        fmt::print(stderr, "ddpctl: {} has no runs of {}\n", log_dir,
                   options.job.empty() ? "this user" : "the job " + options.job);
    }
    return kExitSuccess;
}

}  // namespace

Action declare_runs(CLI::App& verb) {
    const auto options = std::make_shared<RunsOptions>();
    add_job(verb, options->job, "only runs of this job; default: of any");
    add_log_dir(verb, options->log_dir);
    verb.add_flag("--json", options->wants_json, "one object a line");
    verb.footer(R"(
The newest comes first: program, start, end, exit code.

example:
  ddpctl runs --rdzv-id llama
)");
    return [options] { return show_runs(*options); };
}

}  // namespace ddprun::launcher
