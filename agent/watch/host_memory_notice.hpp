#pragma once

#include <optional>
#include <string>

#include "base/tagged.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Says, once a generation, that a node has little memory left for its workers. Pure.
class HostMemoryNotice {
public:
    explicit HostMemoryNotice(const WatchLimits& limits) : limits_(limits) {}

    /// `progress` of this node, whose first rank is `base_rank`. A line, without "ddprun: ".
    [[nodiscard]] std::optional<std::string> look(const rdzv::Progress& progress, Rank base_rank,
                                                  const std::string& host);

private:
    WatchLimits limits_;
    Generation said_;  ///< of this generation it was said
};

}  // namespace ddprun::agent
