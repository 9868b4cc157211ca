#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/result.hpp"
#include "launcher/ctl/rendezvous_events.hpp"
#include "rendezvous/transport/tls.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

/// The declarations that the files of verbs share.
namespace ddprun::launcher {

/// Carries a verb out once its command line was read; returns the exit code.
using Action = std::function<int()>;

/// The answer is no: there is no such job or run, an order cannot be carried out, a machine is
/// unfit, a run was left.
constexpr int kExitNo = 1;

/// Writes the failure to stderr, in one line; returns its exit code.
[[nodiscard]] int complain(const Error& error);

/// The same of a run or job that was asked for: NotFound is kExitNo.
[[nodiscard]] int complain_of_run(const Error& error);
[[nodiscard]] int exit_code(const Result<void>& shown);

/// Writes to stdout at once, as a TakePiece.
[[nodiscard]] bool write_out(std::string_view text);

/// Declares an option with a value. `names`: "--log-dir" is taken as "--log_dir", too.
template <typename Value>
CLI::Option* add_value(CLI::App& verb, const std::string& names, const std::string& placeholder,
                       Value& value, const std::string& help) {
    std::string other = names;
    std::replace(other.begin() + 2, other.end(), '-', '_');
    const bool is_spelt_twice = names.starts_with("--") && other != names;
    return verb.add_option(is_spelt_twice ? names + "," + other : names, value, help)
        ->type_name(placeholder);
}

/// Refuses other values than whole numbers from `least` on. CLI::PositiveNumber names its bounds
/// with 309 digits.
template <typename Number>
CLI::Range at_least(Number least) {
    return CLI::Range(least, std::numeric_limits<Number>::max());
}

/// Which rendezvous and job a verb asks, and what it shows there. Empty: not given.
struct ConnectionOptions {
    std::string endpoints;  ///< a list
    std::string job;
    rdzv::TlsFiles tls;
    std::string secret_file;  ///< of the nodes
    bool is_insecure = false;
    std::string http_token_file;
    std::string operator_secret_file;
};

/// Options of several verbs, declared here only. `otherwise`: what is asked without
/// --rdzv-endpoint; `needed`: the option without which --http-token-file and --operator-secret-file
/// are refused.
CLI::Option* add_endpoint(CLI::App& verb, ConnectionOptions& options, const std::string& otherwise);
CLI::Option* add_job(CLI::App& verb, std::string& job, const std::string& help);
void add_node_secret(CLI::App& verb, ConnectionOptions& options);
void add_operator_secret(CLI::App& verb, ConnectionOptions& options);
void add_tokens(CLI::App& verb, ConnectionOptions& options, CLI::Option* needed);
void add_tls(CLI::App& verb, ConnectionOptions& options);
CLI::Option* add_run(CLI::App& verb, std::string& run);
void add_log_dir(CLI::App& verb, std::string& log_dir);

/// Declares --node, of verbs that are about one node of a job.
CLI::Option* add_node(CLI::App& verb, std::string& node);

/// The endpoints of the rendezvous that `options` or PET_RDZV_ENDPOINT name; empty: they name none.
[[nodiscard]] std::string rendezvous_named(const ConnectionOptions& options);

/// The endpoint on this machine that needs no name.
[[nodiscard]] std::string usual_rendezvous();

/// Those of the rendezvous that may know `job` (empty: any), if none is named: rendezvous_here(),
/// and usual_rendezvous(). At least one.
[[nodiscard]] std::vector<std::string> rendezvous_to_ask(const std::string& log_dir,
                                                         const std::string& job);

/// How those in `list` are asked.
[[nodiscard]] Result<RendezvousAsked> read_endpoints(const ConnectionOptions& options,
                                                     const std::string& list);

/// The rendezvous that is named, else those that may know `job`: InvalidArgument, too, if that is
/// empty and there are several.
[[nodiscard]] Result<RendezvousAsked> read_rendezvous(const ConnectionOptions& options,
                                                      const std::string& log_dir,
                                                      const std::string& job);

/// Whether a run on this machine may be the job that a rendezvous was asked for: no option names a
/// rendezvous, and `failure` says that none answers or has that job.
[[nodiscard]] bool may_be_here(const ConnectionOptions& options, const Error& failure);

/// The file that `options` name, else DDPRUN_OPERATOR_SECRET_FILE; empty: none.
[[nodiscard]] std::string operator_secret_file(const ConnectionOptions& options);

/// `given`, else PET_LOG_DIR, else the folder that ddprun takes by itself.
[[nodiscard]] std::string log_dir_of(const std::string& given);

}  // namespace ddprun::launcher
