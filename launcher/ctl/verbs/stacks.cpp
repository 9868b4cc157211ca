#include "launcher/ctl/stacks.hpp"

#include <optional>
#include <vector>

#include "agent/output/run_folder.hpp"
#include "base/printable.hpp"
#include "base/split.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/merged_stacks.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct StacksOptions {
    ConnectionOptions connection;
    std::string run;  ///< with an endpoint a job there
    std::string node;
    std::string log_dir;
    std::vector<int> ranks;
    bool wants_each = false;
};

/// Ranks of the job that are on other machines. A folder names this node alone.
void tell_of_others(const StacksOptions& options, const std::string& folder,
                    const TakenStacks& taken) {
    const std::optional<agent::RunNote> note = agent::read_run_note(folder);
    const bool is_node_meant = !options.node.empty() || options.run.find('/') != std::string::npos;
    if (is_node_meant || !options.ranks.empty() || !note || note->rendezvous.empty() ||
        taken.ranks.size() >= static_cast<std::size_t>(taken.world_size)) {
        return;
    }
    fmt::print(stderr,
               "ddpctl: {} of {} ranks are on this machine; all: ddpctl stacks {} "
               "--rdzv-endpoint {}\n",
               taken.ranks.size(), taken.world_size, note->job, note->rendezvous);
}

int show_here(const StacksOptions& options, const ChosenJob& job) {
    const Result<TakenStacks> taken = take_stacks(job.folders, options.ranks);
    if (!taken) {
        return complain_of_run(taken.error());
    }
    if (!taken->hint.empty()) {
        fmt::print(stderr, "ddpctl: {}\n", taken->hint);
    }
    tell_of_others(options, job.folders.front(), *taken);
    if (!options.wants_each && options.ranks.empty()) {
        fmt::print("{}", merged_stacks_text(merge_stacks(taken->ranks)));
        return kExitSuccess;
    }
    for (const RankStacks& one : taken->ranks) {
        fmt::print("{}", one.text);
    }
    return kExitSuccess;
}

constexpr std::size_t kAnswerBytesMax = std::size_t{1} << 30;  ///< of all ranks of a job

/// The names in it are those of other nodes' threads, files and functions.
std::string printable_lines(std::string_view text) {
    std::string lines;
    for (const std::string_view line : split(text, '\n')) {
        lines += printable(line, std::string::npos) + "\n";
    }
    return lines;
}

Result<std::string> ask_for_stacks(const RendezvousAsked& asked, const std::string& job,
                                   std::optional<int> rank) {
    std::string text;
    bool is_cut = false;
    const Result<void> shown =
        show_from_any(asked, stacks_target(job, rank), [&](std::string_view piece) {
            is_cut = text.size() + piece.size() > kAnswerBytesMax;
            text += is_cut ? std::string_view() : piece;
            return !is_cut;
        });
    if (is_cut) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("the stacks of job {} are more than {} MiB; ask for some of its "
                                 "ranks with --rank",
                                 job, kAnswerBytesMax >> 20)};
    }
    return shown ? Result<std::string>(std::move(text)) : shown.error();
}

/// Shows the stacks of all nodes of the job, which take them of their workers. `otherwise`: why the
/// job is not asked here, if it was looked for.
int show_there(const StacksOptions& options, const std::optional<Error>& otherwise) {
    const Result<RendezvousAsked> asked =
        read_rendezvous(options.connection, log_dir_of(options.log_dir), options.run);
    if (!asked) {
        return complain(asked.error());
    }
    std::vector<std::optional<int>> ranks(options.ranks.begin(), options.ranks.end());
    if (ranks.empty()) {
        ranks.emplace_back(std::nullopt);
    }
    for (const std::optional<int>& rank : ranks) {
        const Result<std::string> text = ask_for_stacks(*asked, options.run, rank);
        if (!text) {
            return complain_of_run(
                otherwise ? Error{otherwise->code, otherwise->what + "; " + text.error().what}
                          : text.error());
        }
        if (rank) {
            fmt::print("{}", printable_lines(*text));
            continue;
        }
        const StacksOfNodes nodes = merge_nodes(*text);
        for (const std::string& notice : nodes.notices) {
            fmt::print(stderr, "{}{}\n", notice.starts_with("ddpctl: ") ? "" : "ddpctl: ", notice);
        }
        fmt::print("{}", merged_stacks_text(nodes.merged));
    }
    return kExitSuccess;
}

int show_stacks(const StacksOptions& options) {
    if (!options.connection.endpoints.empty()) {
        return show_there(options, std::nullopt);
    }
    const Result<ChosenJob> chosen = choose_job(
        {.log_dir = log_dir_of(options.log_dir), .name = options.run, .node = options.node});
    if (chosen) {
        return show_here(options, *chosen);
    }
    // A job without a node here, on the machine of its rendezvous.
    const bool may_be_there = chosen.error().code == ErrorCode::NotFound && !options.run.empty() &&
                              options.node.empty() && !options.wants_each;
    return may_be_there ? show_there(options, chosen.error()) : complain_of_run(chosen.error());
}

}  // namespace

Action declare_stacks(CLI::App& verb) {
    const auto options = std::make_shared<StacksOptions>();
    add_run(verb, options->run);
    CLI::Option* const rank = add_value(verb, "--rank", "R[,R]", options->ranks,
                                        "only these, with all that is known, unmerged");
    rank->delimiter(',')->check(at_least(0));
    CLI::Option* const all = verb.add_flag("--all", options->wants_each,
                                           "of all ranks here all that is known, unmerged");
    all->excludes(rank);
    CLI::Option* const node = add_node(verb, options->node);
    CLI::Option* const endpoint =
        add_endpoint(verb, options->connection, "the job on this machine");
    endpoint->excludes(node)->excludes(all);
    add_tokens(verb, options->connection, endpoint);
    add_tls(verb, options->connection);
    add_log_dir(verb, options->log_dir);
    verb.footer(R"(
Stacks are Python's (py-spy), else native ones (eu-stack, gdb), else what the
kernel says of the threads. Equal stacks are shown once, with their ranks. No
worker is ended; a debugger holds a worker while it reads. With --rdzv-endpoint
RUN is a job of that rendezvous, whose nodes all take theirs.

examples:
  ddpctl stacks llama               # which rank waits where?
  ddpctl stacks llama --rdzv-endpoint head:29400 --rank 3
)");
    return [options] { return show_stacks(*options); };
}

}  // namespace ddprun::launcher
