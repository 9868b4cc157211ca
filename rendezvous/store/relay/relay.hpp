#pragma once

#include <memory>

#include "base/limits.hpp"
#include "rendezvous/store/core/backend.hpp"
#include "rendezvous/store/net/store_server.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// A relay to `store` (a numeric address), for StoreServer::serve_with(): all its clients share one
/// connection, which is made when the first one comes. When the store is lost, or cannot be
/// reached, all are disconnected, as if they had been its clients; who comes then has another try
/// made. `say` is called on the server's thread and gets the reasons that are this node's or a bug.
[[nodiscard]] std::unique_ptr<StoreBackend> make_relay(const Limits& limits,
                                                       const StoreAddress& store,
                                                       StoreServer::Say say);

}  // namespace ddprun::rdzv
