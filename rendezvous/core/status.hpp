#pragma once

#include <cstddef>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/control.hpp"

namespace ddprun::rdzv {

/// How much of a run is told.
struct StatusExtent {
    std::size_t nodes_max = 0;   ///< those that need attention come before those that do not
    std::size_t events_max = 0;  ///< the last ones
};

/// How things stand with `run` at `now`, for people. Looks only.
[[nodiscard]] JobStatus status_of(const JobId& job, const Run& run, Instant now,
                                  const StatusExtent& extent);

}  // namespace ddprun::rdzv
