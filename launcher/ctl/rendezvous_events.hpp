#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/ctl/show_logs.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

struct RendezvousEventsOptions {
    std::vector<rdzv::Endpoint> endpoints;  ///< of one rendezvous; the first that decides answers
    std::string job;                        ///< empty: the only one there
    std::string token_file;                 ///< empty: asked from the rendezvous's own machine
    std::uint64_t from = 1;                 ///< the first event that is wanted
    bool follows = false;                   ///< until the run is over
};

/// Writes what the rendezvous tells of a job (docs/events.md) to `out`, an event a line. Blocks.
[[nodiscard]] Result<void> show_rendezvous_events(const RendezvousEventsOptions& options,
                                                  std::FILE* out);

struct RendezvousLogsOptions {
    std::vector<rdzv::Endpoint> endpoints;  ///< as above, as are the next two
    std::string job;
    std::string token_file;
    LogsQuestion logs;  ///< at most one of its ranks
};

/// Writes what the workers of all nodes of a job have written to `out`, in lines behind
/// `[rank host] `. Blocks.
[[nodiscard]] Result<void> show_rendezvous_logs(const RendezvousLogsOptions& options,
                                                std::FILE* out);

/// What is asked for it, of a rendezvous or of a run.
[[nodiscard]] std::string logs_target(const std::string& job, const LogsQuestion& logs);

}  // namespace ddprun::launcher
