#include <algorithm>

#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/show_logs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct LogsOptions {
    ConnectionOptions connection;
    LogsQuestion question;
    bool wants_all_nodes = false;
};

/// If no rendezvous was named and none has the job, the job is the run on this machine.
Result<void> show_logs_of_job(const LogsOptions& options, const RendezvousAsked& asked) {
    const std::string& job = options.connection.job;
    const Result<void> shown = show_from_any(asked, logs_target(job, options.question), write_out);
    if (shown || !may_be_here(options.connection, shown.error())) {
        return shown;
    }
    const Result<ChosenJob> chosen =
        choose_job({.log_dir = log_dir_of(options.question.log_dir), .name = job});
    if (!chosen) {
        return chosen.error();
    }
    if (chosen->folders.size() > 1 && options.question.follows) {
        return shown;  // Only a rendezvous sends the logs of several nodes.
    }
    for (const std::string& folder : chosen->folders) {
        Result<void> of_node = show_answer(folder, logs_target("", options.question), write_out);
        if (!of_node) {
            return of_node;
        }
    }
    return {};
}

int show_logs_of_all(const LogsOptions& options) {
    if (options.question.ranks.size() > 1) {
        return complain({ErrorCode::InvalidArgument, "--all takes one --rank, or none for all"});
    }
    const Result<RendezvousAsked> asked = read_rendezvous(
        options.connection, log_dir_of(options.question.log_dir), options.connection.job);
    if (!asked) {
        return complain(asked.error());
    }
    return exit_code(show_logs_of_job(options, *asked));
}

/// The logs of one node have nothing of the others' ranks.
void tell_of_other_nodes(const LogsQuestion& question) {
    const Result<ChosenJob> chosen =
        choose_job({.log_dir = question.log_dir, .name = question.job});
    const bool is_shown =
        chosen && std::any_of(chosen->folders.begin(), chosen->folders.end(),
                              [&question](const std::string& folder) {
                                  return folder.starts_with(question.log_dir + "/");
                              });
    if (question.node.empty() && is_shown && chosen->folders.size() > 1) {
        fmt::print(stderr,
                   "ddpctl: these are the logs of one node; here are {}: choose one with "
                   "--node, or all with --all\n",
                   nodes_of(*chosen));
    }
}

int show_logs_here(const LogsOptions& options) {
    LogsQuestion question = options.question;
    question.log_dir = log_dir_of(question.log_dir);
    question.job = options.connection.job;
    tell_of_other_nodes(question);
    return exit_code(show_logs(question, stdout, stderr));
}

}  // namespace

Action declare_logs(CLI::App& verb) {
    const auto options = std::make_shared<LogsOptions>();
    LogsQuestion& question = options->question;
    add_value(verb, "--rank", "R[,R]", question.ranks, "only these ranks; default: all")
        ->delimiter(',')
        ->check(at_least(0));
    CLI::Option* const follow =
        verb.add_flag("-f,--follow", question.follows, "go on until the run is over");
    add_value(verb, "-n,--lines", "N", question.last_lines, "begin with the last N of each log");
    add_value(verb, "--grep", "PATTERN", question.pattern,
              "only lines with this extended regular expression");
    add_value(verb, "--generation", "N", question.generation,
              "an earlier one, as the report counts; default: newest")
        ->check(at_least<std::uint64_t>(1))
        ->excludes(follow);
    add_job(verb, options->connection.job, "the newest run of this job; default: of any");
    add_log_dir(verb, question.log_dir);
    CLI::Option* const all = verb.add_flag("--all", options->wants_all_nodes,
                                           "of all nodes of a job at work; --rank is one then");
    add_node(verb, question.node)->excludes(all);
    add_endpoint(verb, options->connection, "$PET_RDZV_ENDPOINT, else the one here")->needs(all);
    add_tokens(verb, options->connection, all);
    add_tls(verb, options->connection);
    verb.footer(R"(
A single rank is shown as it wrote. Lines of several begin with [rank], lines of
--all with [rank host]. stderr of workers goes to stderr, with --all to stdout.

examples:
  ddpctl logs --rank 3 --generation 1 -n 50     # before the first restart
  ddpctl logs --all --rdzv-endpoint head:29400 --grep 'nan|inf' --follow
)");
    return [options] {
        return options->wants_all_nodes ? show_logs_of_all(*options) : show_logs_here(*options);
    };
}

}  // namespace ddprun::launcher
