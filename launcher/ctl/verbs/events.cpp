#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct EventsOptions {
    ConnectionOptions connection;
    std::string run;  ///< with an endpoint a job there
    std::string log_dir;
    std::uint64_t first = 1;
    bool follows = false;
};

int show_events_of_job(const EventsOptions& options) {
    const Result<RendezvousAsked> asked = read_rendezvous(options.connection);
    if (!asked) {
        return complain(asked.error());
    }
    const std::string& job = options.run.empty() ? options.connection.job : options.run;
    return exit_code(
        show_from_any(*asked, events_target(job, options.first, options.follows), stdout));
}

int show_events_of_run(const EventsOptions& options) {
    const Result<std::string> folder = choose_run(log_dir_of(options.log_dir), options.run, true);
    if (!folder) {
        return complain_of_run(folder.error());
    }
    return exit_code(show_events(*folder, options.first, options.follows, stdout));
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
    add_job(verb, options->connection.job, "of this job there; default: of the only one")
        ->needs(endpoint)
        ->excludes(run);
    add_tokens(verb, options->connection, endpoint);
    add_tls(verb, options->connection);
    add_log_dir(verb, options->log_dir);
    verb.footer(R"(
RUN is at work or over. With --rdzv-endpoint it is a job of that rendezvous,
which shows what happened on all nodes, over HTTP or (--tls-ca) HTTPS. On other
machines it asks for the token. docs/events.md has the events.

examples:
  ddpctl events llama --follow | jq -c 'select(.event == "failure")'
  ddpctl events llama --rdzv-endpoint head:29400 --http-token-file token
)");
    return [options] {
        return options->connection.endpoints.empty() ? show_events_of_run(*options)
                                                     : show_events_of_job(*options);
    };
}

}  // namespace ddprun::launcher
