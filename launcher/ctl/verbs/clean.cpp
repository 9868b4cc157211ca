#include <cstddef>
#include <vector>

#include "agent/output/run_folder.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct CleanOptions {
    std::string job;
    std::string log_dir;
    std::size_t kept = 0;
    std::string besides;
    bool only_says = false;
};

int remove_old_runs(const CleanOptions& options) {
    const std::string log_dir = log_dir_of(options.log_dir);
    std::vector<agent::FoundRun> found = agent::runs_in(log_dir, options.job);
    std::erase_if(found, [&](const agent::FoundRun& run) { return run.name == options.besides; });
    const agent::RunsRemoved result =
        agent::remove_runs(log_dir, found, options.kept, options.only_says);
    for (const std::string& name : result.removed) {
        fmt::print("{} {}/{}\n", options.only_says ? "would remove" : "removed", log_dir, name);
    }
    // ddprun --log-keep shows the first line of complaints. That another one runs is none.
    for (const std::string& left : result.left) {
        fmt::print("left {}/{}\n", log_dir, left);
    }
    for (const std::string& failed : result.failed) {
        fmt::print(stderr, "ddpctl: left {}/{}\n", log_dir, failed);
    }
    if (result.unsure.size() > 1) {
        fmt::print(stderr,
                   "ddpctl: left {} runs in {} of which cannot be seen from here whether they are "
                   "over: use ddpctl clean on the machines that made them (ddpctl runs), or remove "
                   "them by hand\n",
                   result.unsure.size(), log_dir);
    }
    for (const std::string& unsure : result.unsure) {
        fmt::print(stderr, "ddpctl: left {}/{}\n", log_dir, unsure);
    }
    return result.failed.empty() ? kExitSuccess : kExitNo;
}

}  // namespace

Action declare_clean(CLI::App& verb) {
    const auto options = std::make_shared<CleanOptions>();
    add_value(verb, "--keep", "N", options->kept,
              "leave the newest N, whatever became of them; default: 0");
    add_value(verb, "--besides", "RUN", options->besides,
              "leave this one too, which is none of those N");
    verb.add_flag("--dry-run,--dry_run", options->only_says, "only say what would be removed");
    add_job(verb, options->job, "only runs of this job; default: of any");
    add_log_dir(verb, options->log_dir);
    verb.footer(R"(
Runs of this user go that are over and that no ddprun writes. Links are not
followed. Exit code 1: something that had to go is still there.

example:
  ddpctl clean --keep 20 --dry-run
)");
    return [options] { return remove_old_runs(*options); };
}

}  // namespace ddprun::launcher
