#include "launcher/ctl/verbs/verb.hpp"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include <fmt/ranges.h>

#include "base/os/own_variable.hpp"
#include "base/printable.hpp"
#include "launcher/ctl/local_rendezvous.hpp"
#include "launcher/plan/log_place.hpp"
#include "launcher/plan/rendezvous_port.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

namespace {

Result<std::vector<rdzv::Endpoint>> parse_list(const std::string& list) {
    std::vector<rdzv::Endpoint> endpoints;
    for (std::string text : CLI::detail::split(list, ',')) {
        // An IPv6 address has colons inside its brackets.
        const std::size_t colon = text.rfind(':');
        if (colon == std::string::npos || text.back() == ']') {
            text += fmt::format(":{}", kRendezvousPort);
        }
        const Result<rdzv::Endpoint> endpoint = rdzv::parse_endpoint(text);
        if (!endpoint) {
            return Error{endpoint.error().code, "--rdzv-endpoint: " + endpoint.error().what};
        }
        endpoints.push_back(*endpoint);
    }
    return endpoints;
}

/// That of the default port may be another user's, of whom nothing is known.
std::vector<std::string> with_usual(std::vector<std::string> places) {
    const std::string usual = usual_rendezvous();
    const bool is_known = std::any_of(places.begin(), places.end(), [&usual](const auto& place) {
        return is_same_rendezvous(place, usual);
    });
    if (!is_known) {
        places.push_back(usual);
    }
    return places;
}

}  // namespace

int complain(const Error& error) {
    fmt::print(stderr, "ddpctl: {}\n", printable(error.what, std::string::npos));
    return exit_code_of(error.code, kExitRendezvousLost);
}

int complain_of_run(const Error& error) {
    const int code = complain(error);
    return error.code == ErrorCode::NotFound ? kExitNo : code;
}

int exit_code(const Result<void>& shown) {
    return shown ? kExitSuccess : complain_of_run(shown.error());
}

bool write_out(std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
           std::fflush(stdout) == 0;
}

CLI::Option* add_endpoint(CLI::App& verb, ConnectionOptions& options,
                          const std::string& otherwise) {
    return add_value(verb, "--rdzv-endpoint", "LIST", options.endpoints,
                     "HOST[:PORT],... of the rendezvous; default: " + otherwise);
}

CLI::Option* add_job(CLI::App& verb, std::string& job, const std::string& help) {
    return add_value(verb, "--rdzv-id", "JOB", job, help);
}

void add_node_secret(CLI::App& verb, ConnectionOptions& options) {
    CLI::Option* const file =
        add_value(verb, "--secret-file", "FILE", options.secret_file,
                  "the nodes' secret; default: $DDPRUN_SECRET_FILE, else ~/.config/ddprun/secret");
    verb.add_flag("--insecure", options.is_insecure, "the rendezvous runs with --insecure")
        ->excludes(file);
}

void add_operator_secret(CLI::App& verb, ConnectionOptions& options) {
    add_value(verb, "--operator-secret-file", "FILE", options.operator_secret_file,
              "default: $DDPRUN_OPERATOR_SECRET_FILE");
}

void add_tokens(CLI::App& verb, ConnectionOptions& options, CLI::Option* needed) {
    CLI::Option* const token = add_value(verb, "--http-token-file", "FILE", options.http_token_file,
                                         "as the rendezvous has it; needed on other machines");
    token->needs(needed);
    add_value(verb, "--operator-secret-file", "FILE", options.operator_secret_file,
              "as the rendezvous has it, in place of the token")
        ->needs(needed)
        ->excludes(token);
}

void add_tls(CLI::App& verb, ConnectionOptions& options) {
    add_value(verb, "--tls-ca", "FILE", options.tls.ca,
              "speak TLS; this authority signed its certificate");
    add_value(verb, "--tls-cert", "FILE", options.tls.cert,
              "certificate for a rendezvous that has --tls-ca");
    add_value(verb, "--tls-key", "FILE", options.tls.key, "its private key");
}

CLI::Option* add_run(CLI::App& verb, std::string& run) {
    return verb.add_option(
        "RUN", run,
        "a name that jobs or runs shows, a job, the pid of a ddprun or a folder; "
        "default: the only one");
}

void add_log_dir(CLI::App& verb, std::string& log_dir) {
    add_value(verb, "--log-dir", "DIR", log_dir,
              "default: $PET_LOG_DIR, else $TMPDIR/ddprun-<uid>");
}

CLI::Option* add_node(CLI::App& verb, std::string& node) {
    return add_value(verb, "--node", "NODE", node,
                     "only this one, if several nodes of the job are here");
}

std::string usual_rendezvous() {
    return fmt::format("127.0.0.1:{}", kRendezvousPort);
}

std::string rendezvous_named(const ConnectionOptions& options) {
    return options.endpoints.empty() ? own_variable("PET_RDZV_ENDPOINT") : options.endpoints;
}

std::vector<std::string> rendezvous_to_ask(const std::string& log_dir, const std::string& job) {
    RendezvousHere here = rendezvous_here(log_dir, job);
    return here.is_of_job ? here.places : with_usual(std::move(here.places));
}

Result<RendezvousAsked> read_endpoints(const ConnectionOptions& options, const std::string& list) {
    const Result<std::vector<rdzv::Endpoint>> endpoints = parse_list(list);
    if (!endpoints) {
        return endpoints.error();
    }
    RendezvousAsked asked{.endpoints = *endpoints,
                          .tls = nullptr,
                          .token_file = options.http_token_file,
                          .operator_secret_file = options.operator_secret_file};
    if (options.tls.is_on()) {
        std::vector<std::string> hosts;
        for (const rdzv::Endpoint& endpoint : *endpoints) {
            hosts.push_back(endpoint.host);
        }
        auto tls = rdzv::TlsContext::for_client(options.tls, hosts);
        if (!tls) {
            return tls.error();
        }
        asked.tls = *std::move(tls);
    }
    return asked;
}

Result<RendezvousAsked> read_rendezvous(const ConnectionOptions& options,
                                        const std::string& log_dir, const std::string& job) {
    const std::string named = rendezvous_named(options);
    if (!named.empty()) {
        return read_endpoints(options, named);
    }
    const RendezvousHere here = rendezvous_here(log_dir, job);
    if (here.places.size() > 1 && (job.empty() || here.is_of_job)) {
        return Error{ErrorCode::InvalidArgument,
                     job.empty()
                         ? fmt::format("several rendezvous are here: {}; name a job with "
                                       "--rdzv-id, or one of them with --rdzv-endpoint",
                                       fmt::join(here.places, ", "))
                         : fmt::format("several jobs {} are here, each at a rendezvous of its own: "
                                       "{}; name one with --rdzv-endpoint",
                                       job, fmt::join(here.places, ", "))};
    }
    return read_endpoints(
        options,
        fmt::format("{}", fmt::join(here.is_of_job ? here.places : with_usual(here.places), ",")));
}

bool may_be_here(const ConnectionOptions& options, const Error& failure) {
    return options.endpoints.empty() &&
           (failure.code == ErrorCode::Unreachable || failure.code == ErrorCode::NotFound);
}

std::string operator_secret_file(const ConnectionOptions& options) {
    return options.operator_secret_file.empty() ? own_variable("DDPRUN_OPERATOR_SECRET_FILE")
                                                : options.operator_secret_file;
}

std::string log_dir_of(const std::string& given) {
    const std::string log_dir = given.empty() ? own_variable("PET_LOG_DIR") : given;
    return log_dir.empty() ? default_log_dir(own_variable("TMPDIR"), ::geteuid()) : log_dir;
}

}  // namespace ddprun::launcher
