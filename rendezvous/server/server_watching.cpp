// HTTP on the daemon's port: who watches its jobs.
#include <utility>

#include "rendezvous/server/server.hpp"

namespace ddprun::rdzv {

/// It is half-open until HTTP has admitted something that it asks for.
void Server::hand_to_http(ConnectionId id, UniqueFd watcher) {
    std::string peer = peer_name(watcher.get());
    if (!http_.adopt(id, std::move(watcher), std::move(peer))) {
        left(id);
    }
}

}  // namespace ddprun::rdzv
