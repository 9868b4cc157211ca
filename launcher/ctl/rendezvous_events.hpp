#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/ctl/show_logs.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

/// How a rendezvous is asked over HTTP.
struct RendezvousAsked {
    std::vector<rdzv::Endpoint> endpoints;        ///< of one; the first that decides answers
    std::shared_ptr<const rdzv::TlsContext> tls;  ///< null: in clear
    std::string token_file;            ///< empty, as is the next: asked from its own machine
    std::string operator_secret_file;  ///< what is derived from it is shown
};

struct RendezvousEventsOptions {
    RendezvousAsked asked;
    std::string job;         ///< empty: the only one there
    std::uint64_t from = 1;  ///< the first event that is wanted
    bool follows = false;    ///< until the run is over
};

/// Writes what the rendezvous tells of a job (docs/events.md) to `out`, an event a line. Blocks.
[[nodiscard]] Result<void> show_rendezvous_events(const RendezvousEventsOptions& options,
                                                  std::FILE* out);

struct RendezvousLogsOptions {
    RendezvousAsked asked;
    std::string job;    ///< as above
    LogsQuestion logs;  ///< at most one of its ranks
};

/// Writes what the workers of all nodes of a job have written to `out`, in lines behind
/// `[rank host] `. Blocks.
[[nodiscard]] Result<void> show_rendezvous_logs(const RendezvousLogsOptions& options,
                                                std::FILE* out);

/// What is asked for it, of a rendezvous or of a run.
[[nodiscard]] std::string logs_target(const std::string& job, const LogsQuestion& logs);

}  // namespace ddprun::launcher
