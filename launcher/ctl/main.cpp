#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "agent/output/run_folder.hpp"
#include "base/os/own_variable.hpp"
#include "launcher/ctl/bundle.hpp"
#include "launcher/ctl/give_orders.hpp"
#include "launcher/ctl/jobs_text.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/peer_check.hpp"
#include "launcher/ctl/rendezvous_events.hpp"
#include "launcher/ctl/runs_text.hpp"
#include "launcher/ctl/show_logs.hpp"
#include "launcher/ctl/stacks.hpp"
#include "launcher/ctl/status_text.hpp"
#include "launcher/doctor/doctor_text.hpp"
#include "launcher/doctor/peers.hpp"
#include "launcher/machine/read_machine_facts.hpp"
#include "launcher/machine/real_surroundings.hpp"
#include "launcher/place/host_list.hpp"
#include "launcher/place/place.hpp"
#include "launcher/plan/log_place.hpp"
#include "launcher/plan/rendezvous_port.hpp"
#include "rendezvous/client/control_client.hpp"
#include "rendezvous/http/http_access.hpp"
#include "rendezvous/http/order_request.hpp"
#include "rendezvous/transport/secret_file.hpp"
#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace {

using namespace ddprun;
using namespace ddprun::rdzv;

constexpr int kExitNoSuchJob = 1;
constexpr int kExitUnfit = 1;
constexpr int kExitNotClean = 1;
constexpr int kExitNotTaken = 1;

/// What is asked.
enum class Verb { Status, Jobs, Events, Stacks, Report, Doctor, Logs, Runs, Clean, Order, Token };

struct Flags {
    Verb verb = Verb::Status;
    std::string endpoint;
    std::string job;
    std::string secret_file;
    TlsFiles tls;
    bool is_insecure = false;
    bool wants_json = false;
    ddprun::launcher::LogsQuestion logs;
    std::size_t kept_runs = 0;
    std::string kept_run;
    bool only_says = false;
    std::string run;     ///< of status, events, stacks, report: which one here; empty: not given
    std::string bundle;  ///< of report: the file to write
    bool wants_each = false;  ///< of stacks: each rank's, whole; of logs: all nodes'
    std::uint64_t first_event = 1;
    std::string http_token_file;
    bool follows_events = false;
    OperatorAction action = OperatorAction::Restart;  ///< of an order, as the next ones
    std::string node;
    std::string for_how_long;
    int nodes = 0;
    std::string operator_secret_file;
    bool asks_peers = false;
    std::string peers;
    int peers_port = 0;  ///< 0: not given
    double peers_wait_s = 30;
};

constexpr const char* kHelp =
    R"(Looks at jobs, logs and machines, and gives orders to jobs.

usage: ddpctl status [RUN] [options]
       ddpctl jobs [options]
       ddpctl events [RUN] [options]
       ddpctl stacks [RUN] [options]
       ddpctl report [RUN] --bundle FILE [options]
       ddpctl logs [options]
       ddpctl runs [options]
       ddpctl clean [options]
       ddpctl doctor [--json]
       ddpctl doctor --peers [HOSTS] [options]
       ddpctl drain NODE [options]
       ddpctl restart [options]
       ddpctl hold --for TIME [options]
       ddpctl release [NODE] [options]
       ddpctl quarantine NODE [--for TIME] [options]
       ddpctl grow N [options]
       ddpctl shrink N [options]
       ddpctl stop [options]
       ddpctl token [--operator-secret-file FILE]

status: asks a rendezvous how its jobs stand: what each waits for, who is in it, what is left of
its budgets, and what happened last. With RUN, and where no rendezvous answers, asks the ddprun of
a run on this machine: its workers, where its time went, its restarts phase by phase.
jobs: lists the runs of this user that are at work on this machine.
events: shows what happened in a run here, an event a line, as JSON (docs/events.md). With
--rdzv-endpoint, what a rendezvous tells of a whole job.
stacks: shows where the workers of a run here are now: Python's stacks (py-spy), else native ones
(eu-stack, gdb), else what the kernel says of their threads. Equal stacks are shown once, with their
ranks. No worker is ended; a debugger holds one while it reads it.
report: packs what helps to understand a run here, at work or over, into one file of JSON: report,
events, stacks, ends of logs, what it is made of, what doctor says of this machine. No environment
and no command line is in it; what workers wrote is.
RUN is a name that jobs or runs shows, a job, a pid of a ddprun or a folder. Default: the only one.
logs: shows what the workers of this node have written, of the newest run; restarts are followed.
runs: lists the runs in this node's log folder, the newest first: program, start, end, exit code.
clean: removes runs from this node's log folder that are over: those of this user, that no ddprun
writes. Links are not followed.
doctor: looks for what may be wrong with this machine before a job finds out: limits, shared
memory, the clock, names, CPUs, cgroup, namespaces. Exit code 1 if something is bad.
doctor --peers: run on every node at once, each with the same list: all try to reach all, at a port
that all know and at one that the kernel chose, and each says whom it cannot reach, and who has not
reached it. That is what a job needs: a firewall that is open one way only shows here.

Orders, to a rendezvous from whoever holds the operators' secret; without one, to a job on this
machine alone. Each is an event `operator` of the job, with who asked; none uses up --max-restarts.
drain: the workers save, NODE leaves for good, and a spare takes its place; else the others go on if
they suffice.
restart: the workers save and start anew.
hold: no generation starts before TIME is over; workers that run are left alone.
release: ends a hold; with NODE its quarantine.
quarantine: NODE is left out for TIME (10m) while others suffice. A running node's workers save.
grow, shrink: at least, at most N nodes from now on, of those that --nnodes allows. Those that there
are too many of wait as spares.
stop: the workers save, and the job is over, with exit code 98 of every ddprun.
token: prints what orders over HTTP and the page's orders need, Authorization: Bearer TOKEN. It is
derived from the operators' secret, which itself never travels.

options of status:
  --rdzv-endpoint LIST  HOST[:PORT] of the rendezvous, as ddprun was given it; of several,
                        separated by commas, the first that knows the job; one that follows
                        another sends us there. Default: $PET_RDZV_ENDPOINT, else 127.0.0.1:29400
  --rdzv-id JOB         only this job; default: all of them
  --json                everything, as one line of JSON
  --secret-file FILE    what the nodes of the job hold, as for ddprun. Default:
                        $DDPRUN_SECRET_FILE, else ~/.config/ddprun/secret
  --insecure            ask a rendezvous that was started with --insecure
  --tls-ca FILE         speak TLS; the rendezvous must show a certificate of this authority, made
                        for the host of --rdzv-endpoint
  --tls-cert FILE, --tls-key FILE
                        what to show to a rendezvous that was given --tls-ca
  -h, --help            this text

options of orders:
  --rdzv-endpoint LIST, --tls-ca, --tls-cert, --tls-key, --json
                        as of status
  --rdzv-id JOB         whose; on this machine also a name that jobs shows. Default: $PET_RDZV_ID,
                        else the only one here
  --operator-secret-file FILE
                        as the rendezvous was given it; the secret of the nodes is not enough.
                        Default: $DDPRUN_OPERATOR_SECRET_FILE
  --log-dir DIR         as of logs
  --for TIME            90, 90s, 10m or 2h; at most a day
  NODE                  its id or its host's name, as status shows them

options of logs:
  --rank R[,R]          only these ranks; default: all that run on this node. One alone is shown
                        as it wrote, several in lines that begin with [rank]
  -f, --follow          go on until the run is over
  -n, --lines N         of each log begin with the last N lines; default: with all
  --grep PATTERN        only lines with this extended regular expression
  --generation N        of an earlier generation, as the report and `attempt_<N - 1>` count them;
                        default: of each rank the newest. Not with --follow
  --all                 of all nodes of a job at work, which send it through the rendezvous; lines
                        begin with [rank host], both streams are on stdout. --rank is one then.
                        --rdzv-endpoint, --http-token-file, --operator-secret-file, --tls-ca,
                        --tls-cert, --tls-key and --rdzv-id: as of events
  --rdzv-id JOB         the newest run of this job; default: of any
  --log-dir DIR         as ddprun was given it. Default: $PET_LOG_DIR, else
                        ${TMPDIR:-/tmp}/ddprun-<uid>
What workers wrote to stdout goes to stdout, the rest to stderr. What a worker wrote to both as one
stream (output.log) goes to stdout.

options of jobs and events:
  -f, --follow          events: go on until the run is over
  --from N              events: from number N on; default: 1
  --rdzv-endpoint LIST  events: as of status, but over HTTP, which answers programs of its own
                        machine only, and who shows the token
  --rdzv-id JOB         events: of this job; default: of the only one there
  --http-token-file FILE
                        events: the token, as ddprun-rendezvous was given it
  --operator-secret-file FILE
                        events: in its place; shows what token prints
  --tls-ca, --tls-cert, --tls-key
                        events: as of status; by https then, which a rendezvous with TLS needs from
                        other machines
  --log-dir DIR         as above; runs at work elsewhere are found, too
  --json                jobs: one object a line

options of stacks:
  --rank R[,R]          only these ranks, and all that is known of each, unmerged
  --all                 of all ranks all that is known, unmerged
  --log-dir DIR         as above

options of report:
  --bundle FILE         where to write it; only this user may read it
  --log-dir DIR         as above

options of runs and clean:
  --rdzv-id JOB         only runs of this job; default: of any
  --log-dir DIR         as above
  --json                runs: one object a line
  --keep N              clean: leave the newest N, whatever became of them; default: 0
  --besides RUN         clean: leave this one too, which is none of those N
  --dry-run             clean: only say what would be removed

options of doctor --peers:
  HOSTS                 the nodes: a,b,c or gpu-[01-16]. Default, under Slurm: those of the step
  --port N              the port that all know: that of --rdzv-endpoint. Default: the one that
                        ddprun would take under Slurm, else 29400
  --wait SECONDS        nodes may begin so much later than others (30)
  --json                as above

exit codes:
  0    answered; the order was taken
  1    there is no such job, run, node, generation or rank; an order that cannot be carried out as
       things are; doctor: something is bad; clean: something that had to go is still there
  2    a flag or file that cannot be used
  69   no rendezvous answers there, or none of several leads

examples:
  ddpctl status --rdzv-endpoint head:29400 --rdzv-id llama
  ddpctl jobs
  ddpctl events llama --follow | jq -c 'select(.event == "failure")'
  ddpctl stacks llama                           # who waits where?
  ddpctl report llama --bundle llama.json
  ddpctl logs --rank 0 --follow
  ddpctl logs --grep 'nan|inf' --follow
  ddpctl logs --rank 3 --generation 1 -n 50     # what rank 3 said before the first restart
  ddpctl logs --all --rdzv-endpoint head:29400 --grep 'nan|inf' --follow
  ddpctl clean --keep 20
  ddpctl drain gpu-07 --rdzv-endpoint head:29400 --rdzv-id llama --operator-secret-file ops
  ddpctl restart                                # the only job here, of one node
  srun ddpctl doctor --peers                    # on every node of the step
  ddpctl doctor --peers gpu-01,gpu-02           # on gpu-01 and on gpu-02
)";

class Help : public CLI::Formatter {
public:
    std::string make_help(const CLI::App* /*app*/, std::string /*name*/,
                          CLI::AppFormatMode /*mode*/) const override {
        return kHelp;
    }
};

void declare_tls(CLI::App& verb, Flags& flags) {
    verb.add_option("--tls-ca,--tls_ca", flags.tls.ca);
    verb.add_option("--tls-cert,--tls_cert", flags.tls.cert);
    verb.add_option("--tls-key,--tls_key", flags.tls.key);
}

/// Options of each verb that asks a rendezvous over HTTP.
void declare_tokens(CLI::App& verb, Flags& flags, CLI::Option* needed) {
    CLI::Option* const token =
        verb.add_option("--http-token-file,--http_token_file", flags.http_token_file);
    verb.add_option("--operator-secret-file,--operator_secret_file", flags.operator_secret_file)
        ->needs(needed)
        ->excludes(token);
    token->needs(needed);
    declare_tls(verb, flags);
}

void declare_local_flags(CLI::App& app, Flags& flags) {
    CLI::App* const jobs = app.add_subcommand("jobs");
    CLI::App* const events = app.add_subcommand("events");
    CLI::App* const stacks = app.add_subcommand("stacks");
    CLI::App* const report = app.add_subcommand("report");
    for (CLI::App* const verb : {jobs, events, stacks, report}) {
        verb->formatter(std::make_shared<Help>());
        verb->add_option("--log-dir,--log_dir", flags.logs.log_dir);
    }
    jobs->add_flag("--json", flags.wants_json);
    jobs->callback([&flags] { flags.verb = Verb::Jobs; });
    events->add_option("run", flags.run);
    events->add_option("--from", flags.first_event)->check(CLI::PositiveNumber);
    events->add_flag("-f,--follow", flags.follows_events);
    CLI::Option* const endpoint =
        events->add_option("--rdzv-endpoint,--rdzv_endpoint", flags.endpoint)
            ->excludes(events->get_option("run"));
    events->add_option("--rdzv-id,--rdzv_id", flags.job)->needs(endpoint);
    declare_tokens(*events, flags, endpoint);
    events->callback([&flags] { flags.verb = Verb::Events; });
    stacks->add_option("run", flags.run);
    stacks->add_option("--rank", flags.logs.ranks)->delimiter(',')->check(CLI::NonNegativeNumber);
    stacks->add_flag("--all", flags.wants_each)->excludes("--rank");
    stacks->callback([&flags] { flags.verb = Verb::Stacks; });
    report->add_option("run", flags.run);
    report->add_option("--bundle", flags.bundle)->required();
    report->callback([&flags] { flags.verb = Verb::Report; });
}

void declare_orders(CLI::App& app, Flags& flags) {
    for (const auto& [name, action] : kOperatorActionNames) {
        CLI::App* const verb = app.add_subcommand(std::string(name));
        verb->formatter(std::make_shared<Help>());
        verb->add_option("--rdzv-endpoint,--rdzv_endpoint", flags.endpoint);
        verb->add_option("--rdzv-id,--rdzv_id", flags.job);
        verb->add_option("--operator-secret-file,--operator_secret_file",
                         flags.operator_secret_file);
        declare_tls(*verb, flags);
        verb->add_option("--log-dir,--log_dir", flags.logs.log_dir);
        verb->add_flag("--json", flags.wants_json);
        const bool is_about_node =
            action == OperatorAction::Drain || action == OperatorAction::Quarantine;
        if (is_about_node || action == OperatorAction::Release) {
            verb->add_option("node", flags.node)->required(is_about_node);
        }
        if (action == OperatorAction::Hold || action == OperatorAction::Quarantine) {
            verb->add_option("--for", flags.for_how_long)->required(action == OperatorAction::Hold);
        }
        if (action == OperatorAction::Grow || action == OperatorAction::Shrink) {
            verb->add_option("nodes", flags.nodes)->required()->check(CLI::PositiveNumber);
        }
        verb->callback([&flags, action = action] {
            flags.verb = Verb::Order;
            flags.action = action;
        });
    }
}

/// What an agent runs for who reads logs through the rendezvous (WorkersReaders).
void declare_node_logs(CLI::App& app, Flags& flags) {
    CLI::App* const of_node = app.add_subcommand("node-logs");
    of_node->add_option("--run", flags.logs.run)->required();
    of_node->add_option("--host", flags.logs.host)->required();
    of_node->add_option("--line-bytes", flags.logs.line_bytes_max);
    of_node->add_option("--rank", flags.logs.ranks)->check(CLI::NonNegativeNumber);
    of_node->add_flag("--follow", flags.logs.follows);
    of_node->add_option("--lines", flags.logs.last_lines);
    of_node->add_option("--grep", flags.logs.pattern);
    of_node->add_option("--generation", flags.logs.generation);
    of_node->callback([&flags] {
        flags.verb = Verb::Logs;
        flags.logs.until_fd = STDIN_FILENO;
    });
}

void declare_flags(CLI::App& app, Flags& flags) {
    app.formatter(std::make_shared<Help>());
    app.require_subcommand(1);
    CLI::App* const status = app.add_subcommand("status");
    status->formatter(std::make_shared<Help>());
    status->add_option("--rdzv-endpoint,--rdzv_endpoint", flags.endpoint);
    status->add_option("--rdzv-id,--rdzv_id", flags.job);
    status->add_flag("--json", flags.wants_json);
    status->add_option("run", flags.run)
        ->excludes(status->get_option("--rdzv-endpoint"), status->get_option("--rdzv-id"));
    status->add_option("--log-dir,--log_dir", flags.logs.log_dir);
    CLI::Option* const secret_file =
        status->add_option("--secret-file,--secret_file", flags.secret_file);
    status->add_flag("--insecure", flags.is_insecure)->excludes(secret_file);
    declare_tls(*status, flags);
    declare_local_flags(app, flags);
    declare_orders(app, flags);
    CLI::App* const token = app.add_subcommand("token");
    token->formatter(std::make_shared<Help>());
    token->add_option("--operator-secret-file,--operator_secret_file", flags.operator_secret_file);
    token->callback([&flags] { flags.verb = Verb::Token; });
    CLI::App* const doctor = app.add_subcommand("doctor");
    doctor->formatter(std::make_shared<Help>());
    doctor->add_flag("--json", flags.wants_json);
    CLI::Option* const peers = doctor->add_option("--peers", flags.peers)->expected(0, 1);
    doctor->add_option("--port", flags.peers_port)->check(CLI::Range(1, 65535))->needs(peers);
    doctor->add_option("--wait", flags.peers_wait_s)
        ->check(CLI::Range(0.001, 86400.0))
        ->needs(peers);
    doctor->callback([&flags, peers] {
        flags.verb = Verb::Doctor;
        flags.asks_peers = peers->count() > 0;
    });
    CLI::App* const logs = app.add_subcommand("logs");
    logs->formatter(std::make_shared<Help>());
    logs->add_option("--rank", flags.logs.ranks)->delimiter(',')->check(CLI::NonNegativeNumber);
    logs->add_flag("-f,--follow", flags.logs.follows);
    logs->add_option("-n,--lines", flags.logs.last_lines);
    logs->add_option("--grep", flags.logs.pattern);
    logs->add_option("--rdzv-id,--rdzv_id", flags.logs.job);
    logs->add_option("--log-dir,--log_dir", flags.logs.log_dir);
    logs->add_option("--generation", flags.logs.generation)
        ->check(CLI::PositiveNumber)
        ->excludes("--follow");
    CLI::Option* const all = logs->add_flag("--all", flags.wants_each);
    logs->add_option("--rdzv-endpoint,--rdzv_endpoint", flags.endpoint)->needs(all);
    declare_tokens(*logs, flags, all);
    logs->callback([&flags] { flags.verb = Verb::Logs; });
    declare_node_logs(app, flags);
    CLI::App* const runs = app.add_subcommand("runs");
    CLI::App* const clean = app.add_subcommand("clean");
    for (CLI::App* const verb : {runs, clean}) {
        verb->formatter(std::make_shared<Help>());
        verb->add_option("--rdzv-id,--rdzv_id", flags.logs.job);
        verb->add_option("--log-dir,--log_dir", flags.logs.log_dir);
    }
    runs->add_flag("--json", flags.wants_json);
    runs->callback([&flags] { flags.verb = Verb::Runs; });
    clean->add_option("--keep", flags.kept_runs);
    clean->add_option("--besides", flags.kept_run);
    clean->add_flag("--dry-run,--dry_run", flags.only_says);
    clean->callback([&flags] { flags.verb = Verb::Clean; });
}

Result<std::vector<Endpoint>> read_endpoints(std::string list) {
    if (list.empty()) {
        list = own_variable("PET_RDZV_ENDPOINT");
    }
    if (list.empty()) {
        list = fmt::format("127.0.0.1:{}", ddprun::launcher::kRendezvousPort);
    }
    std::vector<Endpoint> endpoints;
    for (std::string text : CLI::detail::split(list, ',')) {
        // An IPv6 address has colons inside its brackets.
        const std::size_t colon = text.rfind(':');
        if (colon == std::string::npos || text.back() == ']') {
            text += fmt::format(":{}", ddprun::launcher::kRendezvousPort);
        }
        const Result<Endpoint> endpoint = parse_endpoint(text);
        if (!endpoint) {
            return Error{endpoint.error().code, "--rdzv-endpoint: " + endpoint.error().what};
        }
        endpoints.push_back(*endpoint);
    }
    return endpoints;
}

int exit_code_for(const Error& error) {
    return ddprun::exit_code_of(error.code, kExitRendezvousLost);
}

int complain(const Error& error) {
    fmt::print(stderr, "ddpctl: {}\n", error.what);
    return exit_code_for(error);
}

std::string log_dir_of(const Flags& flags) {
    std::string log_dir = flags.logs.log_dir;
    if (log_dir.empty()) {
        log_dir = own_variable("PET_LOG_DIR");
    }
    if (log_dir.empty()) {
        log_dir = ddprun::launcher::default_log_dir(own_variable("TMPDIR"), ::geteuid());
    }
    return log_dir;
}

int exit_code_of_local(const Error& error) {
    return error.code == ErrorCode::NotFound ? kExitNoSuchJob : exit_code_for(error);
}

int complain_of_local(const Error& error) {
    fmt::print(stderr, "ddpctl: {}\n", error.what);
    return exit_code_of_local(error);
}

int jobs(const Flags& flags) {
    using namespace ddprun::launcher;
    std::vector<JobHere> found;
    for (const std::string& folder : running_here(log_dir_of(flags))) {
        found.push_back({.folder = folder, .answer = ask_run(folder)});
    }
    if (flags.wants_json) {
        fmt::print("{}", jobs_json(found));
    } else if (!found.empty()) {
        fmt::print("{}", jobs_text(found));
    } else {
        fmt::print(stderr, "ddpctl: no job of this user runs on this machine\n");
    }
    return kExitSuccess;
}

/// Null: none is asked for.
Result<std::shared_ptr<const TlsContext>> make_tls(const std::vector<Endpoint>& endpoints,
                                                   const Flags& flags) {
    if (!flags.tls.is_on()) {
        return std::shared_ptr<const TlsContext>();
    }
    std::vector<std::string> hosts;
    for (const Endpoint& endpoint : endpoints) {
        hosts.push_back(endpoint.host);
    }
    return TlsContext::for_client(flags.tls, hosts);
}

/// Over HTTP.
Result<ddprun::launcher::RendezvousAsked> read_rendezvous(const Flags& flags) {
    const Result<std::vector<Endpoint>> endpoints = read_endpoints(flags.endpoint);
    if (!endpoints) {
        return endpoints.error();
    }
    const Result<std::shared_ptr<const TlsContext>> tls = make_tls(*endpoints, flags);
    if (!tls) {
        return tls.error();
    }
    return ddprun::launcher::RendezvousAsked{.endpoints = *endpoints,
                                             .tls = *tls,
                                             .token_file = flags.http_token_file,
                                             .operator_secret_file = flags.operator_secret_file};
}

int rendezvous_events(const Flags& flags) {
    const Result<ddprun::launcher::RendezvousAsked> asked = read_rendezvous(flags);
    if (!asked) {
        return complain(asked.error());
    }
    const Result<void> shown =
        ddprun::launcher::show_rendezvous_events({.asked = *asked,
                                                  .job = flags.job,
                                                  .from = flags.first_event,
                                                  .follows = flags.follows_events},
                                                 stdout);
    return shown ? kExitSuccess : complain_of_local(shown.error());
}

int events(const Flags& flags) {
    if (!flags.endpoint.empty()) {
        return rendezvous_events(flags);
    }
    using namespace ddprun::launcher;
    const Result<std::string> folder = choose_run(log_dir_of(flags), flags.run, true);
    if (!folder) {
        return complain_of_local(folder.error());
    }
    const Result<void> shown =
        show_events(*folder, flags.first_event, flags.follows_events, stdout);
    return shown ? kExitSuccess : complain_of_local(shown.error());
}

int stacks(const Flags& flags) {
    using namespace ddprun::launcher;
    const Result<std::string> folder = choose_run(log_dir_of(flags), flags.run, false);
    if (!folder) {
        return complain_of_local(folder.error());
    }
    const Result<TakenStacks> taken = take_stacks(*folder, flags.logs.ranks);
    if (!taken) {
        return complain_of_local(taken.error());
    }
    if (!taken->hint.empty()) {
        fmt::print(stderr, "ddpctl: {}\n", taken->hint);
    }
    if (!flags.wants_each && flags.logs.ranks.empty()) {
        fmt::print("{}", merged_stacks_text(merge_stacks(taken->ranks)));
        return kExitSuccess;
    }
    for (const RankStacks& one : taken->ranks) {
        fmt::print("{}", one.text);
    }
    return kExitSuccess;
}

int report(const Flags& flags) {
    using namespace ddprun::launcher;
    const Result<std::string> folder = choose_run(log_dir_of(flags), flags.run, true);
    if (!folder) {
        return complain_of_local(folder.error());
    }
    const Result<std::string> bundle = bundle_of(*folder);
    if (!bundle) {
        return complain_of_local(bundle.error());
    }
    if (const Result<void> written = write_bundle(flags.bundle, *bundle); !written) {
        fmt::print(stderr, "ddpctl: {}; name another file with --bundle\n", written.error().what);
        return kExitUsage;
    }
    fmt::print("{}: {} bytes; look through it before you pass it on: what workers wrote is in it\n",
               flags.bundle, bundle->size());
    return kExitSuccess;
}

/// Of a run on this machine.
int local_status(const Flags& flags) {
    using namespace ddprun::launcher;
    const Result<std::string> folder = choose_run(log_dir_of(flags), flags.run, false);
    if (!folder) {
        return complain_of_local(folder.error());
    }
    const Result<std::string> answer = ask_run(*folder);
    if (!answer) {
        return complain_of_local(answer.error());
    }
    fmt::print("{}", flags.wants_json ? *answer : job_text(*answer));
    return kExitSuccess;
}

/// The first answer with a job in it, else the first answer.
Result<ControlAnswer> ask_all(const std::vector<Endpoint>& endpoints, const Flags& flags,
                              const std::optional<JobSecret>& secret) {
    const Result<std::shared_ptr<const TlsContext>> tls = make_tls(endpoints, flags);
    if (!tls) {
        return tls.error();
    }
    std::optional<ControlAnswer> answer;
    std::optional<Error> failure;
    for (const Endpoint& endpoint : endpoints) {
        const ControlOptions options{.endpoint = endpoint,
                                     .secret = secret,
                                     .tls = *tls,
                                     .job = ddprun::JobId(flags.job),
                                     .limits = Limits()};
        Result<ControlAnswer> heard = ask_status(options);
        if (!heard) {
            failure = failure ? failure : heard.error();
        } else if (!answer || !heard->reply.jobs.empty()) {
            answer = *std::move(heard);
        }
        if (answer && !answer->reply.jobs.empty()) {
            break;
        }
    }
    if (answer) {
        return *std::move(answer);
    }
    if (failure->code == ErrorCode::Unreachable) {
        failure->what +=
            "; name it with --rdzv-endpoint, or ask a run on this machine: ddpctl jobs lists them";
    }
    return *std::move(failure);
}

Result<ControlAnswer> ask_rendezvous(const Flags& flags) {
    const Result<std::vector<Endpoint>> endpoints = read_endpoints(flags.endpoint);
    if (!endpoints) {
        return endpoints.error();
    }
    std::optional<JobSecret> secret;
    if (!flags.is_insecure) {
        Result<JobSecret> loaded = load_secret(flags.secret_file);
        if (!loaded) {
            return loaded.error();
        }
        secret = *std::move(loaded);
    }
    return ask_all(*endpoints, flags, secret);
}

int status(const Flags& flags) {
    if (!flags.run.empty()) {
        return local_status(flags);
    }
    const Result<ControlAnswer> answer = ask_rendezvous(flags);
    if (!answer) {
        const bool is_any_meant = flags.endpoint.empty() && flags.job.empty() &&
                                  own_variable("PET_RDZV_ENDPOINT").empty();
        const bool is_one_here =
            is_any_meant && ddprun::launcher::choose_run(log_dir_of(flags), "", false);
        return is_one_here ? local_status(flags) : complain(answer.error());
    }
    if (flags.wants_json) {
        fmt::print("{}\n", answer->body);
    } else {
        fmt::print("{}", ddprun::launcher::status_text(answer->reply));
    }
    if (!answer->reply.jobs.empty()) {
        return kExitSuccess;
    }
    const std::string from = to_string(answer->from);
    if (!flags.job.empty()) {
        fmt::print(stderr,
                   "ddpctl: the rendezvous at {} knows no job {}; leave --rdzv-id out to see all\n",
                   from, flags.job);
        return kExitNoSuchJob;
    }
    fmt::print(stderr, "ddpctl: the rendezvous at {} has no job\n", from);
    return kExitSuccess;
}

/// What the flags ask of `job`.
Result<OperatorOrder> read_order(const Flags& flags, const std::string& job) {
    OperatorOrder order{.job = ddprun::JobId(job),
                        .action = flags.action,
                        .node = flags.node,
                        .duration = Milliseconds(0),
                        .nodes = flags.nodes,
                        .by = ddprun::launcher::who_asks()};
    if (!flags.for_how_long.empty()) {
        const std::optional<Milliseconds> time = ddprun::launcher::parse_time(flags.for_how_long);
        if (!time) {
            return Error{
                ErrorCode::InvalidArgument,
                fmt::format("--for {}: write a time like 90, 90s, 10m or 2h", flags.for_how_long)};
        }
        order.duration = *time;
    }
    return order;
}

std::string operator_secret_file(const Flags& flags) {
    return flags.operator_secret_file.empty() ? own_variable("DDPRUN_OPERATOR_SECRET_FILE")
                                              : flags.operator_secret_file;
}

Result<OperatorReply> give_to_rendezvous(const Flags& flags, const std::string& job) {
    if (job.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "which job? Name it with --rdzv-id; ddpctl status lists them"};
    }
    const std::string file = operator_secret_file(flags);
    if (file.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "orders need --operator-secret-file FILE, the one that the rendezvous was "
                     "started with; the secret of the nodes is not enough"};
    }
    const Result<OperatorOrder> order = read_order(flags, job);
    const Result<std::vector<Endpoint>> endpoints = read_endpoints(flags.endpoint);
    if (!order || !endpoints) {
        return order ? endpoints.error() : order.error();
    }
    const Result<std::shared_ptr<const TlsContext>> tls = make_tls(*endpoints, flags);
    const Result<JobSecret> secret = load_secret(file);
    if (!tls || !secret) {
        return tls ? secret.error() : tls.error();
    }
    return ddprun::launcher::give_to_rendezvous(
        {.endpoints = *endpoints, .secret = *secret, .tls = *tls}, *order);
}

/// To a run on this machine.
Result<OperatorReply> give_here(const Flags& flags, const std::string& wanted) {
    const Result<std::string> run = ddprun::launcher::choose_run(log_dir_of(flags), wanted, false);
    if (!run) {
        return Error{run.error().code,
                     run.error().what + "; to a rendezvous with --operator-secret-file FILE"};
    }
    const Result<std::string> job = ddprun::launcher::job_of_run(*run);
    if (!job) {
        return job.error();
    }
    const Result<OperatorOrder> order = read_order(flags, *job);
    return order ? ddprun::launcher::give_to_run(*run, *order) : order.error();
}

int give_order(const Flags& flags) {
    const std::string job = flags.job.empty() ? own_variable("PET_RDZV_ID") : flags.job;
    const bool is_for_rendezvous = !flags.endpoint.empty() ||
                                   !own_variable("PET_RDZV_ENDPOINT").empty() ||
                                   !operator_secret_file(flags).empty();
    const Result<OperatorReply> reply =
        is_for_rendezvous ? give_to_rendezvous(flags, job) : give_here(flags, job);
    if (!reply) {
        return is_for_rendezvous ? complain(reply.error()) : complain_of_local(reply.error());
    }
    const bool is_taken = reply->fault == OrderFault::None;
    if (flags.wants_json) {
        fmt::print("{}", ddprun::rdzv::order_answer(*reply));
    } else if (is_taken) {
        fmt::print("{} (event {})\n", reply->text, reply->event);
    } else {
        fmt::print(stderr, "ddpctl: {}\n", reply->text);
    }
    if (is_taken) {
        return kExitSuccess;
    }
    return reply->fault == OrderFault::Invalid ? int{kExitUsage} : kExitNotTaken;
}

/// Prints the bearer token for orders over HTTP, which follows from the operators' secret.
int token(const Flags& flags) {
    const std::string file = operator_secret_file(flags);
    if (file.empty()) {
        return complain({ErrorCode::InvalidArgument,
                         "token: of which secret? Name it with --operator-secret-file FILE"});
    }
    const Result<JobSecret> secret = load_secret(file);
    if (!secret) {
        return complain(secret.error());
    }
    fmt::print("{}\n", order_token_of(*secret));
    return kExitSuccess;
}

/// What --peers names, or the nodes of a step of Slurm.
Result<ddprun::launcher::PeerCheckOptions> read_peers(const Flags& flags) {
    using namespace ddprun::launcher;
    const RealSurroundings surroundings;
    const Result<std::optional<Place>> place = find_place(surroundings);
    std::string source = "--peers " + flags.peers;
    std::string list = flags.peers;
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
        if (list.empty()) {
            list = own_variable(name);
            source = fmt::format("{}={}", name, list);
        }
    }
    if (list.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "--peers: nobody says which nodes; name them, the same list on each: "
                     "--peers gpu-01,gpu-02 or --peers 'gpu-[01-16]'"};
    }
    Result<std::vector<std::string>> hosts = expand_host_list(list);
    if (!hosts) {
        return Error{hosts.error().code, fmt::format("{}: {}", source, hosts.error().what)};
    }
    PeerCheckOptions options{.hosts = *std::move(hosts), .port = kRendezvousPort};
    if (flags.peers.empty() && place && *place) {
        options.self = (*place)->node;
    }
    options.wait = Milliseconds(static_cast<std::int64_t>(flags.peers_wait_s * 1000));
    if (flags.peers_port != 0) {
        options.port = static_cast<std::uint16_t>(flags.peers_port);
    } else if (place && *place && (*place)->endpoint_port != 0) {
        options.port = (*place)->endpoint_port;
    }
    return options;
}

int doctor(const Flags& flags) {
    using namespace ddprun::launcher;
    std::vector<Finding> findings;
    if (flags.asks_peers) {
        const Result<PeerCheckOptions> options = read_peers(flags);
        if (!options) {
            return complain(options.error());
        }
        const Result<PeersFacts> facts = try_peers(*options);
        if (!facts) {
            return complain(facts.error());
        }
        findings = check_peers(*facts);
    } else {
        findings = check_machine(read_machine_facts());
    }
    fmt::print("{}", flags.wants_json ? doctor_json(findings) : doctor_text(findings));
    const bool is_fit = std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
        return finding.result == CheckResult::Bad;
    });
    return is_fit ? kExitSuccess : kExitUnfit;
}

int runs(const Flags& flags) {
    const auto found = agent::runs_in(log_dir_of(flags), flags.logs.job);
    if (flags.wants_json) {
        fmt::print("{}", ddprun::launcher::runs_json(found));
    } else if (!found.empty()) {
        fmt::print("{}", ddprun::launcher::runs_text(found));
    } else {
        fmt::print(stderr, "ddpctl: {} has no runs of {}\n", log_dir_of(flags),
                   flags.logs.job.empty() ? "this user" : "the job " + flags.logs.job);
    }
    return kExitSuccess;
}

int clean(const Flags& flags) {
    const std::string log_dir = log_dir_of(flags);
    std::vector<agent::FoundRun> found = agent::runs_in(log_dir, flags.logs.job);
    std::erase_if(found,
                  [&flags](const agent::FoundRun& run) { return run.name == flags.kept_run; });
    const agent::RunsRemoved result =
        agent::remove_runs(log_dir, found, flags.kept_runs, flags.only_says);
    for (const std::string& name : result.removed) {
        fmt::print("{} {}/{}\n", flags.only_says ? "would remove" : "removed", log_dir, name);
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
    return result.failed.empty() ? kExitSuccess : kExitNotClean;
}

/// Where no rendezvous answers, and none was named, the run of this machine is the job.
int all_logs(const Flags& flags) {
    using namespace ddprun::launcher;
    if (flags.logs.ranks.size() > 1) {
        return complain({ErrorCode::InvalidArgument, "--all takes one --rank, or none for all"});
    }
    const Result<RendezvousAsked> asked = read_rendezvous(flags);
    if (!asked) {
        return complain(asked.error());
    }
    const Result<void> shown =
        show_rendezvous_logs({.asked = *asked, .job = flags.logs.job, .logs = flags.logs}, stdout);
    if (shown || shown.error().code != ErrorCode::Unreachable || !flags.endpoint.empty()) {
        return shown ? kExitSuccess : complain_of_local(shown.error());
    }
    const Result<std::string> folder = choose_run(log_dir_of(flags), flags.logs.job, false);
    if (!folder) {
        return complain_of_local(folder.error());
    }
    const Result<void> here = show_answer(*folder, logs_target("", flags.logs), stdout);
    return here ? kExitSuccess : complain_of_local(here.error());
}

int logs(const Flags& flags) {
    if (flags.wants_each) {
        return all_logs(flags);
    }
    ddprun::launcher::LogsQuestion question = flags.logs;
    question.log_dir = log_dir_of(flags);
    // For an agent all is one stream, whose lines must be whole.
    std::FILE* const err = question.run.empty() ? stderr : stdout;
    const Result<void> shown = ddprun::launcher::show_logs(question, stdout, err);
    if (shown) {
        return kExitSuccess;
    }
    fmt::print(stderr, "ddpctl: {}\n", shown.error().what);
    return shown.error().code == ErrorCode::NotFound ? kExitNoSuchJob
                                                     : exit_code_for(shown.error());
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    CLI::App app;
    Flags flags;
    declare_flags(app, flags);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& success) {
        return app.exit(success);
    } catch (const CLI::ParseError& error) {
        return complain({ErrorCode::InvalidArgument, fmt::format("{}; see --help", error.what())});
    }
    switch (flags.verb) {
        case Verb::Jobs:
            return jobs(flags);
        case Verb::Events:
            return events(flags);
        case Verb::Stacks:
            return stacks(flags);
        case Verb::Report:
            return report(flags);
        case Verb::Doctor:
            return doctor(flags);
        case Verb::Logs:
            return logs(flags);
        case Verb::Runs:
            return runs(flags);
        case Verb::Clean:
            return clean(flags);
        case Verb::Order:
            return give_order(flags);
        case Verb::Token:
            return token(flags);
        case Verb::Status:
            break;
    }
    return status(flags);
}
