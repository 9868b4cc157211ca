#include <vector>

#include "launcher/ctl/jobs_text.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct JobsOptions {
    std::string log_dir;
    bool wants_json = false;
};

int show_jobs(const JobsOptions& options) {
    std::vector<JobHere> found;
    for (const std::string& folder : running_here(log_dir_of(options.log_dir))) {
        found.push_back({.folder = folder, .answer = ask_run(folder)});
    }
    if (options.wants_json) {
        fmt::print("{}", jobs_json(found));
    } else if (!found.empty()) {
        fmt::print("{}", jobs_text(found));
    } else {
        fmt::print(stderr, "ddpctl: no job of this user runs on this machine\n");
    }
    return kExitSuccess;
}

}  // namespace

Action declare_jobs(CLI::App& verb) {
    const auto options = std::make_shared<JobsOptions>();
    add_log_dir(verb, options->log_dir);
    verb.add_flag("--json", options->wants_json, "one object a line");
    verb.footer(R"(
Runs at work that log elsewhere are found, too.

example:
  ddpctl jobs
)");
    return [options] { return show_jobs(*options); };
}

}  // namespace ddprun::launcher
