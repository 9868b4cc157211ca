#include <optional>
#include <utility>

#include "base/limits.hpp"
#include "base/os/own_variable.hpp"
#include "launcher/ctl/jobs_text.hpp"
#include "launcher/ctl/local_runs.hpp"
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

/// Asks the ddprun of a run on this machine.
int show_run(const StatusOptions& options) {
    const Result<std::string> folder = choose_run(log_dir_of(options.log_dir), options.run, false);
    if (!folder) {
        return complain_of_run(folder.error());
    }
    const Result<std::string> answer = ask_run(*folder);
    if (!answer) {
        return complain_of_run(answer.error());
    }
    fmt::print("{}", options.wants_json ? *answer : job_text(*answer));
    return kExitSuccess;
}

/// The first answer with a job in it, else the first answer. `job`: empty: all.
Result<rdzv::ControlAnswer> ask_all(const ConnectionOptions& options, const std::string& job) {
    const Result<RendezvousAsked> asked = read_rendezvous(options);
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
    if (failure->code == ErrorCode::Unreachable) {
        failure->what +=
            "; name it with --rdzv-endpoint, or ask a run on this machine: ddpctl jobs lists them";
    }
    return *std::move(failure);
}

/// Of the rendezvous that was asked for a job which it does not know.
std::string known_jobs(const ConnectionOptions& options) {
    const Result<rdzv::ControlAnswer> all = ask_all(options, "");
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

int show_status(const StatusOptions& options) {
    const ConnectionOptions& connection = options.connection;
    if (!options.run.empty() && connection.endpoints.empty()) {
        return show_run(options);
    }
    const std::string& job = options.run.empty() ? connection.job : options.run;
    const Result<rdzv::ControlAnswer> answer = ask_all(connection, job);
    if (!answer) {
        const bool is_any_meant = connection.endpoints.empty() && job.empty() &&
                                  own_variable("PET_RDZV_ENDPOINT").empty();
        const bool is_one_here = is_any_meant && choose_run(log_dir_of(options.log_dir), "", false);
        return is_one_here ? show_run(options) : complain(answer.error());
    }
    if (options.wants_json) {
        fmt::print("{}\n", answer->body);
    } else {
        fmt::print("{}", status_text(answer->reply));
    }
    if (!answer->reply.jobs.empty()) {
        return kExitSuccess;
    }
    const std::string from = to_string(answer->from);
    if (job.empty()) {
        fmt::print(stderr, "ddpctl: the rendezvous at {} has no job\n", from);
        return kExitSuccess;
    }
    fmt::print(stderr, "ddpctl: the rendezvous at {} knows no job {}; {}\n", from, job,
               options.run.empty() ? "leave --rdzv-id out to see all" : known_jobs(connection));
    return kExitNo;
}

}  // namespace

Action declare_status(CLI::App& verb) {
    const auto options = std::make_shared<StatusOptions>();
    CLI::Option* const run = add_run(verb, options->run);
    add_endpoint(verb, options->connection, "$PET_RDZV_ENDPOINT, else 127.0.0.1:29400");
    add_job(verb, options->connection.job, "only this job")->excludes(run);
    add_node_secret(verb, options->connection);
    add_tls(verb, options->connection);
    add_log_dir(verb, options->log_dir);
    verb.add_flag("--json", options->wants_json, "everything, as one line of JSON");
    verb.footer(R"(
A rendezvous shows what each job waits for, its nodes, what is left of its
budgets and what happened last. The ddprun of a run here shows workers, steps
and where the time went. With --rdzv-endpoint RUN is a job of that rendezvous.
If no rendezvous was named and none answers, the only run here is shown.

examples:
  ddpctl status llama --rdzv-endpoint head:29400
  ddpctl status llama               # on a machine where it runs
)");
    return [options] { return show_status(*options); };
}

}  // namespace ddprun::launcher
