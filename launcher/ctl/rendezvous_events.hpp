#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/ctl/http_request.hpp"
#include "launcher/ctl/show_logs.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

/// How a rendezvous is asked over HTTP.
struct RendezvousAsked {
    std::vector<rdzv::Endpoint> endpoints;        ///< the first that knows the job answers
    std::shared_ptr<const rdzv::TlsContext> tls;  ///< null: in clear
    std::string token_file;            ///< empty, as is the next: asked from its own machine
    std::string operator_secret_file;  ///< what is derived from it is shown
};

/// Gives the answer of the first rendezvous that decides, and knows the job, to GET `target` to
/// `take`, as it comes.
[[nodiscard]] Result<void> show_from_any(const RendezvousAsked& asked, const std::string& target,
                                         const TakePiece& take);

/// The target of a GET for the events of `job` (docs/events.md) from number `from` on, a line each.
/// `job` empty: the only one there; `follows`: until the run is over.
[[nodiscard]] std::string events_target(const std::string& job, std::uint64_t from, bool follows);

/// The target of a GET, at a rendezvous or at a run, for all that a job's workers have written, in
/// lines behind `[rank host] `. `logs`: at most one of its ranks counts.
[[nodiscard]] std::string logs_target(const std::string& job, const LogsQuestion& logs);

/// The target of a GET for where the workers of `job` are, of all nodes, or of `rank` alone.
[[nodiscard]] std::string stacks_target(const std::string& job, std::optional<int> rank);

}  // namespace ddprun::launcher
