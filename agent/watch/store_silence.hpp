#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/watch/hang_notice.hpp"
#include "base/instant.hpp"
#include "rendezvous/store/core/store_waits.hpp"

namespace ddprun::agent {

/// A sign of a hang: the workers' store gets no requests while a worker waits in it. Only the node
/// that has the store can see it. Pure.
class StoreSilence {
public:
    /// Other workers start.
    void begin() { *this = StoreSilence(); }

    /// The store has answered so many requests so far, not counted those by which clients only
    /// check whether a key exists. True if it has answered none for so long.
    [[nodiscard]] bool is_silent(Instant now, Milliseconds after, std::uint64_t requests);

    /// Returns the sign of a hang if `waits` names a wait; nothing when no client waits.
    [[nodiscard]] static std::optional<HangSeen> seen(Milliseconds after, int world_size,
                                                      const std::string& host,
                                                      const rdzv::StoreWaits& waits);

private:
    std::optional<std::uint64_t> requests_;
    Instant since_{};
};

}  // namespace ddprun::agent
