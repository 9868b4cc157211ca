#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "rendezvous/store/core/store_waits.hpp"
#include "rendezvous/store/protocol/replies.hpp"

namespace ddprun::rdzv {

/// Carries out the requests of a StoreService's clients: the store itself, or a relay to it, which
/// has a connection of its own. Everything is called on the store's thread.
class StoreBackend {
public:
    StoreBackend() = default;
    virtual ~StoreBackend() = default;
    StoreBackend(const StoreBackend&) = delete;
    StoreBackend& operator=(const StoreBackend&) = delete;

    /// Carries out one complete `request`, as RequestSplitter delimits it, and appends what it
    /// causes to be sent to `replies`, to this client or to others. Nothing has happened on
    /// failure, and the caller closes this client's connection: the protocol has no other way to
    /// say no. The text says why, for people. When `owner` keeps the memory alive in which
    /// `request` lies, a big value is not copied out of it.
    [[nodiscard]] virtual Result<void> handle(StoreClient client, std::string_view request,
                                              StoreReplies& replies,
                                              const std::shared_ptr<const void>& owner) = 0;

    /// The client's connection is gone, and its number may be given to another.
    virtual void disconnected(StoreClient client, StoreReplies& replies) = 0;

    /// Clients of relays may come. A relay has none.
    [[nodiscard]] virtual bool takes_relays() const { return true; }

    /// The clients that wait; the caller fills in `clients`. A relay does not know them.
    [[nodiscard]] virtual StoreWaits waits() const { return {}; }

    /// While false, no request is given to handle(); asked again after each turn and on_time().
    [[nodiscard]] virtual bool has_room() const { return true; }

    /// The backend's own descriptors go into this epoll set under the number `event`.
    virtual void attach([[maybe_unused]] int epoll_fd, [[maybe_unused]] std::uint64_t event) {}
    virtual void on_event([[maybe_unused]] std::uint32_t events,
                          [[maybe_unused]] StoreReplies& replies) {}

    /// Handles the events of one epoll_wait().
    virtual void end_turn([[maybe_unused]] StoreReplies& replies) {}

    [[nodiscard]] virtual std::optional<Instant> next_deadline() const { return std::nullopt; }
    virtual void on_time([[maybe_unused]] Instant now, [[maybe_unused]] StoreReplies& replies) {}
};

}  // namespace ddprun::rdzv
