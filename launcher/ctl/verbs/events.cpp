#include <unistd.h>

#include "agent/output/line_splitter.hpp"
#include "agent/output/run_folder.hpp"
#include "base/limits.hpp"
#include "launcher/ctl/event_text.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct EventsOptions {
    ConnectionOptions connection;
    std::string run;  ///< with an endpoint a job there
    std::string log_dir;
    std::string node;  ///< of the run
    std::uint64_t first = 1;
    bool follows = false;
    bool wants_json = false;  ///< at a terminal, too
};

/// Programs get the lines as they are, a terminal what they say.
TakePiece taker(const EventsOptions& options) {
    if (options.wants_json || ::isatty(STDOUT_FILENO) != 1) {
        return write_out;
    }
    const auto lines = std::make_shared<agent::LineSplitter>(
        [](std::string_view line, std::string& out) { out += event_text(line) + "\n"; },
        Limits{}.events_kept_bytes_max);
    return [lines](std::string_view piece) {
        std::string text;
        lines->feed(piece, text);
        return write_out(text);
    };
}

/// A rendezvous reports the events of all nodes in one stream.
bool is_of_several_nodes(const EventsOptions& options) {
    const Result<ChosenJob> chosen = choose_job(
        {.log_dir = log_dir_of(options.log_dir), .name = options.run, .node = options.node});
    return chosen && chosen->folders.size() > 1;
}

Result<void> show_events_of_run(const EventsOptions& options, const std::string& run) {
    const Result<std::string> folder = choose_run({.log_dir = log_dir_of(options.log_dir),
                                                   .name = run,
                                                   .node = options.node,
                                                   .takes_ended = true});
    return folder ? show_events(*folder, options.first, options.follows, taker(options))
                  : Result<void>(folder.error());
}

/// If no rendezvous was named and none has the job, the job is the run on this machine.
Result<void> show_events_of_job(const EventsOptions& options) {
    const ConnectionOptions& connection = options.connection;
    std::string job = options.run.empty() ? connection.job : options.run;
    if (job.empty() && rendezvous_named(connection).empty()) {
        const Result<ChosenJob> chosen = choose_job({.log_dir = log_dir_of(options.log_dir)});
        job = chosen ? agent::read_run_note(chosen->folders.front()).value_or(agent::RunNote()).job
                     : job;
    }
    const Result<RendezvousAsked> asked =
        read_rendezvous(connection, log_dir_of(options.log_dir), job);
    if (!asked) {
        return asked.error();
    }
    Result<void> shown =
        show_from_any(*asked, events_target(job, options.first, options.follows), taker(options));
    const bool has_nodes_here = connection.endpoints.empty() && is_of_several_nodes(options);
    if (shown || (!may_be_here(connection, shown.error()) && !has_nodes_here)) {
        return shown;
    }
    Result<void> here = show_events_of_run(options, job);
    if (!here) {
        here = Error{here.error().code, shown.error().what + "; " + here.error().what};
    }
    return here;
}

}  // namespace

Action declare_events(CLI::App& verb) {
    const auto options = std::make_shared<EventsOptions>();
    CLI::Option* const run = add_run(verb, options->run);
    verb.add_flag("-f,--follow", options->follows, "go on until the run is over");
    add_value(verb, "--from", "N", options->first, "from number N on; default: 1")
        ->check(at_least<std::uint64_t>(1));
    CLI::Option* const endpoint =
        add_endpoint(verb, options->connection, "the run on this machine");
    add_job(verb, options->connection.job, "of this job; without an endpoint as status asks")
        ->excludes(run);
    add_tokens(verb, options->connection, endpoint);
    add_tls(verb, options->connection);
    add_log_dir(verb, options->log_dir);
    add_node(verb, options->node)->excludes(endpoint);
    verb.add_flag("--json", options->wants_json, "JSON at a terminal, too");
    verb.footer(R"(
A terminal gets a line for people, a pipe JSON (docs/events.md). RUN is at work
or over. With --rdzv-endpoint it is a job there, of which all nodes are shown.

examples:
  ddpctl events llama --follow | jq -c 'select(.event == "failure")'
  ddpctl events llama --rdzv-endpoint head:29400 --http-token-file token
)");
    return [options] {
        const ConnectionOptions& connection = options->connection;
        const bool is_run_here = connection.endpoints.empty() && connection.job.empty() &&
                                 !is_of_several_nodes(*options);
        return exit_code(is_run_here ? show_events_of_run(*options, options->run)
                                     : show_events_of_job(*options));
    };
}

}  // namespace ddprun::launcher
