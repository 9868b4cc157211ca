#include "launcher/ctl/stacks.hpp"

#include <vector>

#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/merged_stacks.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct StacksOptions {
    std::string run;
    std::string log_dir;
    std::vector<int> ranks;
    bool wants_each = false;
};

int show_stacks(const StacksOptions& options) {
    const Result<std::string> folder = choose_run(log_dir_of(options.log_dir), options.run, false);
    if (!folder) {
        return complain_of_run(folder.error());
    }
    const Result<TakenStacks> taken = take_stacks(*folder, options.ranks);
    if (!taken) {
        return complain_of_run(taken.error());
    }
    if (!taken->hint.empty()) {
        fmt::print(stderr, "ddpctl: {}\n", taken->hint);
    }
    if (!options.wants_each && options.ranks.empty()) {
        fmt::print("{}", merged_stacks_text(merge_stacks(taken->ranks)));
        return kExitSuccess;
    }
    for (const RankStacks& one : taken->ranks) {
        fmt::print("{}", one.text);
    }
    return kExitSuccess;
}

}  // namespace

Action declare_stacks(CLI::App& verb) {
    const auto options = std::make_shared<StacksOptions>();
    add_run(verb, options->run);
    CLI::Option* const rank =
        add_value(verb, "--rank", "R[,R]", options->ranks,
                  "only these ranks, and all that is known of each, unmerged");
    rank->delimiter(',')->check(at_least(0));
    verb.add_flag("--all", options->wants_each, "of all ranks all that is known, unmerged")
        ->excludes(rank);
    add_log_dir(verb, options->log_dir);
    verb.footer(R"(
Stacks are Python's (py-spy), else native ones (eu-stack, gdb), else what the
kernel says of the threads. Equal stacks are shown once, with their ranks. No
worker is ended; a debugger holds a worker while it reads.

examples:
  ddpctl stacks llama               # which rank waits where?
  ddpctl stacks llama --rank 3
)");
    return [options] { return show_stacks(*options); };
}

}  // namespace ddprun::launcher
