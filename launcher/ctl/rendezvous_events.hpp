#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/result.hpp"
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

}  // namespace ddprun::launcher
