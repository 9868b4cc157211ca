#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "launcher/ctl/status_text.hpp"
#include "rendezvous/client/control_client.hpp"
#include "rendezvous/client/secret_file.hpp"
#include "rendezvous/protocol/control.hpp"
#include "rendezvous/protocol/endpoint.hpp"
#include "rendezvous/protocol/exit_codes.hpp"

namespace {

using ddprun::Error;
using ddprun::ErrorCode;
using ddprun::Result;
using namespace ddprun::rdzv;

constexpr int kExitNoSuchJob = 1;
constexpr const char* kDefaultEndpoint = "127.0.0.1:29400";
constexpr const char* kDefaultPort = ":29400";

struct Flags {
    std::string endpoint;
    std::string job;
    std::string secret_file;
    TlsFiles tls;
    bool is_insecure = false;
    bool wants_json = false;
};

constexpr const char* kHelp =
    R"(Asks a rendezvous how its jobs stand: what each waits for, who is in it, what is left of its
budgets, and what happened last. It changes nothing.

usage: ddpctl status [options]

options:
  --rdzv-endpoint LIST  HOST[:PORT] of the rendezvous, as ddprun was given it; of several,
                        separated by commas, the first that knows the job. Default:
                        $PET_RDZV_ENDPOINT, else 127.0.0.1:29400
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

A job on a single node that was started without --rdzv-endpoint has no rendezvous that could be
asked: its ddprun says on its console what it waits for.

exit codes:
  0    answered
  1    there is no such job
  2    a flag or file that cannot be used
  69   no rendezvous answers there

example:
  ddpctl status --rdzv-endpoint head:29400 --rdzv-id llama
)";

class Help : public CLI::Formatter {
public:
    std::string make_help(const CLI::App* /*app*/, std::string /*name*/,
                          CLI::AppFormatMode /*mode*/) const override {
        return kHelp;
    }
};

void declare_flags(CLI::App& app, Flags& flags) {
    app.formatter(std::make_shared<Help>());
    app.require_subcommand(1);
    CLI::App* const status = app.add_subcommand("status");
    status->formatter(std::make_shared<Help>());
    status->add_option("--rdzv-endpoint,--rdzv_endpoint", flags.endpoint);
    status->add_option("--rdzv-id,--rdzv_id", flags.job);
    status->add_flag("--json", flags.wants_json);
    CLI::Option* const secret_file =
        status->add_option("--secret-file,--secret_file", flags.secret_file);
    status->add_flag("--insecure", flags.is_insecure)->excludes(secret_file);
    status->add_option("--tls-ca,--tls_ca", flags.tls.ca);
    status->add_option("--tls-cert,--tls_cert", flags.tls.cert);
    status->add_option("--tls-key,--tls_key", flags.tls.key);
}

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

Result<std::vector<Endpoint>> read_endpoints(std::string list) {
    if (list.empty()) {
        list = variable("PET_RDZV_ENDPOINT");
    }
    if (list.empty()) {
        list = kDefaultEndpoint;
    }
    std::vector<Endpoint> endpoints;
    for (std::string text : CLI::detail::split(list, ',')) {
        // An IPv6 address has colons inside its brackets.
        const std::size_t colon = text.rfind(':');
        if (colon == std::string::npos || text.back() == ']') {
            text += kDefaultPort;
        }
        const Result<Endpoint> endpoint = parse_endpoint(text);
        if (!endpoint) {
            return Error{endpoint.error().code, "--rdzv-endpoint: " + endpoint.error().what};
        }
        endpoints.push_back(*endpoint);
    }
    return endpoints;
}

int exit_code_of(const Error& error) {
    switch (error.code) {
        case ErrorCode::InvalidArgument:
        case ErrorCode::NotFound:
        case ErrorCode::PermissionDenied:
        case ErrorCode::BadSecret:
            return kExitUsage;
        default:
            return kExitRendezvousLost;
    }
}

int complain(const Error& error) {
    fmt::print(stderr, "ddpctl: {}\n", error.what);
    return exit_code_of(error);
}

struct Answer {
    std::string body;
    StatusReply reply;
    Endpoint from;
};

/// The first answer with a job in it, else the first answer.
Result<Answer> ask_all(const std::vector<Endpoint>& endpoints, const Flags& flags,
                       const std::optional<JobSecret>& secret) {
    std::optional<Answer> answer;
    std::optional<Error> failure;
    for (const Endpoint& endpoint : endpoints) {
        ControlOptions options{
            .endpoint = endpoint, .secret = secret, .job = ddprun::JobId(flags.job)};
        if (flags.tls.is_on()) {
            Result<std::shared_ptr<const TlsContext>> tls =
                TlsContext::for_client(flags.tls, {endpoint.host});
            if (!tls) {
                return tls.error();
            }
            options.tls = *std::move(tls);
        }
        const Result<std::string> body = ask_status(options);
        if (!body) {
            failure = failure ? failure : body.error();
            continue;
        }
        const Result<StatusReply> reply = decode_status_reply(*body, options.limits);
        if (reply && (!answer || !reply->jobs.empty())) {
            answer = Answer{*body, *reply, endpoint};
        }
        if (reply && !reply->jobs.empty()) {
            break;
        }
    }
    if (answer) {
        return *std::move(answer);
    }
    if (failure->code == ErrorCode::Unreachable) {
        failure->what +=
            "; name it with --rdzv-endpoint (a job on a single node without one has "
            "no rendezvous to ask: its ddprun says what it waits for)";
    }
    return *std::move(failure);
}

int status(const Flags& flags) {
    const Result<std::vector<Endpoint>> endpoints = read_endpoints(flags.endpoint);
    if (!endpoints) {
        return complain(endpoints.error());
    }
    std::optional<JobSecret> secret;
    if (!flags.is_insecure) {
        Result<JobSecret> loaded = load_secret(flags.secret_file);
        if (!loaded) {
            return complain(loaded.error());
        }
        secret = *std::move(loaded);
    }
    const Result<Answer> answer = ask_all(*endpoints, flags, secret);
    if (!answer) {
        return complain(answer.error());
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
    return status(flags);
}
