#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "agent/output/run_folder.hpp"
#include "base/limits.hpp"
#include "launcher/ctl/ended_job.hpp"
#include "launcher/ctl/jobs_text.hpp"
#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/local_rendezvous.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/status_here.hpp"
#include "launcher/ctl/status_text.hpp"
#include "launcher/ctl/verbs/verbs.hpp"
#include "rendezvous/client/control_client.hpp"
#include "rendezvous/transport/secret_file.hpp"

namespace ddprun::launcher {

namespace {

struct StatusOptions {
    ConnectionOptions connection;
    std::string run;  ///< with an endpoint a job there
    std::string log_dir;
    bool wants_json = false;
};

/// The first answer with a job in it, else the first answer, of those in `list`. `job`: empty: all.
Result<rdzv::ControlAnswer> ask_all(const ConnectionOptions& options, const std::string& list,
                                    const std::string& job) {
    const Result<RendezvousAsked> asked = read_endpoints(options, list);
    if (!asked) {
        return asked.error();
    }
    rdzv::ControlOptions question{.endpoint = {},
                                  .secret = std::nullopt,
                                  .tls = asked->tls,
                                  .job = JobId(job),
                                  .limits = Limits()};
    if (!options.is_insecure) {
        Result<rdzv::JobSecret> loaded = rdzv::load_secret(options.secret_file);
        if (!loaded) {
            return loaded.error();
        }
        question.secret = *std::move(loaded);
    }
    std::optional<rdzv::ControlAnswer> answer;
    std::optional<Error> failure;
    for (const rdzv::Endpoint& endpoint : asked->endpoints) {
        question.endpoint = endpoint;
        Result<rdzv::ControlAnswer> heard = rdzv::ask_status(question);
        if (heard && !heard->reply.jobs.empty()) {
            return heard;
        }
        if (!heard) {
            failure = failure ? failure : heard.error();
        } else if (!answer) {
            answer = *std::move(heard);
        }
    }
    if (answer) {
        return *std::move(answer);
    }
    return *std::move(failure);
}

void print_answer(const StatusOptions& options, const rdzv::ControlAnswer& answer) {
    fmt::print("{}", options.wants_json ? answer.body + "\n" : status_text(answer.reply));
}

int show_run(const StatusOptions& options, const std::string& folder) {
    const Result<std::string> answer = ask_run(folder);
    if (!answer) {
        return complain_of_run(answer.error());
    }
    fmt::print("{}", options.wants_json ? *answer : job_text(*answer));
    return kExitSuccess;
}

/// Shows a job with several nodes here, which its rendezvous knows as one. If the rendezvous does
/// not answer, each node does.
int show_nodes(const StatusOptions& options, const std::vector<std::string>& folders) {
    const agent::RunNote note = agent::read_run_note(folders.front()).value_or(agent::RunNote());
    const Result<rdzv::ControlAnswer> answer =
        ask_all(options.connection, note.rendezvous, note.job);
    if (answer && !answer->reply.jobs.empty()) {
        print_answer(options, *answer);
        return kExitSuccess;
    }
    fmt::print(stderr, "ddpctl: {}; its nodes on this machine are asked instead\n",
               answer
                   ? fmt::format("the rendezvous at {} knows no job {}", note.rendezvous, note.job)
                   : answer.error().what);
    int code = kExitSuccess;
    for (const std::string& folder : folders) {
        code = std::max(code, show_run(options, folder));
    }
    return code;
}

int show_ended(const StatusOptions& options, const std::vector<std::string>& folders) {
    if (!agent::read_run_note(folders.front())) {
        return complain_of_run(
            {ErrorCode::NotFound,
             fmt::format("{} has no run.json: it is no folder of a run", folders.front())});
    }
    const nlohmann::ordered_json job = ended_job(folders, options.log_dir);
    if (options.wants_json) {
        fmt::print("{}", json_line(job));
    } else {
        fmt::print("{}", ended_job_text(job));
    }
    return kExitSuccess;
}

/// No run here is meant: `none` says so. A rendezvous that is known here may have the job.
int show_elsewhere(const StatusOptions& options, const Error& none) {
    const std::string named = rendezvous_named(options.connection);
    const std::vector<std::string> places =
        named.empty() ? rendezvous_to_ask(log_dir_of(options.log_dir), options.run)
                      : std::vector<std::string>{named};
    const std::string list = fmt::format("{}", fmt::join(places, ","));
    const Result<rdzv::ControlAnswer> answer = ask_all(options.connection, list, options.run);
    if (answer && !answer->reply.jobs.empty()) {
        print_answer(options, *answer);
        return kExitSuccess;
    }
    return complain_of_run(
        {none.code, fmt::format("{}; {}", none.what,
                                answer ? fmt::format("nor has the rendezvous at {} that job",
                                                     to_string(answer->from))
                                       : answer.error().what)});
}

int show_here(const StatusOptions& options) {
    const Result<ChosenJob> chosen = choose_job(
        {.log_dir = log_dir_of(options.log_dir), .name = options.run, .takes_ended = true});
    if (!chosen) {
        return chosen.error().code == ErrorCode::NotFound ? show_elsewhere(options, chosen.error())
                                                          : complain_of_run(chosen.error());
    }
    if (!chosen->is_at_work) {
        return show_ended(options, chosen->folders);
    }
    return chosen->folders.size() == 1 ? show_run(options, chosen->folders.front())
                                       : show_nodes(options, chosen->folders);
}

/// The runs here that none of the rendezvous that have answered reports.
std::vector<JobHere> other_runs(const std::string& log_dir, const StatusHere& here) {
    std::vector<JobHere> runs;
    for (const std::string& folder : running_here(log_dir)) {
        const std::optional<agent::RunNote> note = agent::read_run_note(folder);
        const std::string place = note ? note->rendezvous : "";
        const bool is_told =
            !place.empty() && std::any_of(here.rendezvous.begin(), here.rendezvous.end(),
                                          [&place](const StatusHere::Heard& heard) {
                                              return is_same_rendezvous(heard.place, place);
                                          });
        if (!is_told) {
            runs.push_back({.folder = folder, .answer = ask_run(folder)});
        }
    }
    return runs;
}

/// Nothing was named: what can be known here.
int show_all(const StatusOptions& options) {
    const std::string log_dir = log_dir_of(options.log_dir);
    const std::vector<std::string> places = rendezvous_to_ask(log_dir, "");
    StatusHere here;
    std::optional<Error> failure;
    for (const std::string& place : places) {
        Result<rdzv::ControlAnswer> answer = ask_all(options.connection, place, "");
        if (answer) {
            here.rendezvous.push_back({.place = place, .answer = *std::move(answer)});
            continue;
        }
        failure = failure ? failure : answer.error();
        // On the usual port there need not be one.
        const bool may_be_absent =
            place == usual_rendezvous() && answer.error().code == ErrorCode::Unreachable;
        if (places.size() > 1 && !may_be_absent) {
            fmt::print(stderr, "ddpctl: {}\n", answer.error().what);
        }
    }
    here.runs = other_runs(log_dir, here);
    if (here.rendezvous.empty() && here.runs.empty()) {
        failure->what += fmt::format(
            "; no job of this user is at work here. Name another rendezvous with "
            "--rdzv-endpoint, or a job that is over: ddpctl runs lists those in {}",
            log_dir);
        return complain(*failure);
    }
    if (options.wants_json) {
        fmt::print("{}", status_here_json(here));
    } else {
        fmt::print("{}", status_here_text(here, usual_rendezvous()));
    }
    if (!has_jobs(here)) {
        fmt::print(stderr, "ddpctl: the rendezvous at {} has no job\n",
                   here.rendezvous.front().place);
    }
    return kExitSuccess;
}

/// Lists the jobs of a rendezvous that was asked for a job which it does not know.
std::string known_jobs(const ConnectionOptions& options, const std::string& list) {
    const Result<rdzv::ControlAnswer> all = ask_all(options, list, "");
    if (!all) {
        return all.error().what;
    }
    std::vector<std::string> names;
    for (const rdzv::JobStatus& job : all->reply.jobs) {
        names.push_back(job.job.value());
    }
    if (all->reply.jobs_left_out > 0) {
        names.push_back(fmt::format("{} more", all->reply.jobs_left_out));
    }
    return names.empty() ? "it has none" : fmt::format("it has {}", fmt::join(names, ", "));
}

/// `list`: the rendezvous that are asked. `job`: empty: all.
int show_there(const StatusOptions& options, const std::string& list, const std::string& job) {
    Result<rdzv::ControlAnswer> answer = ask_all(options.connection, list, job);
    if (!answer) {
        Error failure = answer.error();
        if (failure.code == ErrorCode::Unreachable) {
            failure.what +=
                "; name it with --rdzv-endpoint, or ask a run on this machine: ddpctl "
                "jobs lists them";
        }
        return complain(failure);
    }
    print_answer(options, *answer);
    if (!answer->reply.jobs.empty()) {
        return kExitSuccess;
    }
    const std::string from = to_string(answer->from);
    if (job.empty()) {
        fmt::print(stderr, "ddpctl: the rendezvous at {} has no job\n", from);
        return kExitSuccess;
    }
    fmt::print(stderr, "ddpctl: the rendezvous at {} knows no job {}; {}\n", from, job,
               options.run.empty() ? "leave --rdzv-id out to see all"
                                   : known_jobs(options.connection, list));
    return kExitNo;
}

int show_status(const StatusOptions& options) {
    const ConnectionOptions& connection = options.connection;
    if (!options.run.empty() && connection.endpoints.empty()) {
        return show_here(options);
    }
    const std::string& job = options.run.empty() ? connection.job : options.run;
    std::string list = rendezvous_named(connection);
    if (list.empty() && job.empty()) {
        return show_all(options);
    }
    if (list.empty()) {
        list =
            fmt::format("{}", fmt::join(rendezvous_to_ask(log_dir_of(options.log_dir), job), ","));
    }
    return show_there(options, list, job);
}

}  // namespace

Action declare_status(CLI::App& verb) {
    const auto options = std::make_shared<StatusOptions>();
    CLI::Option* const run = add_run(verb, options->run);
    add_endpoint(verb, options->connection, "$PET_RDZV_ENDPOINT, else those known here");
    add_job(verb, options->connection.job, "only this job")->excludes(run);
    add_node_secret(verb, options->connection);
    add_tls(verb, options->connection);
    add_log_dir(verb, options->log_dir);
    verb.add_flag("--json", options->wants_json, "everything, as one line of JSON");
    verb.footer(R"(
A rendezvous shows what each job waits for, its nodes and what happened last; a
run here its workers, steps and where the time went; a run that is over how it
ended. With --rdzv-endpoint RUN is a job there. Without a name all jobs are
shown that are known here: those of each rendezvous of this user's runs and
daemons, and runs of one node.

examples:
  ddpctl status llama --rdzv-endpoint head:29400
  ddpctl status llama               # on a machine where it runs
)");
    return [options] { return show_status(*options); };
}

}  // namespace ddprun::launcher
