// HTTP on the daemon's port: who watches its jobs.
#include <utility>

#include <fmt/format.h>

#include "rendezvous/server/server.hpp"

namespace ddprun::rdzv {

void Server::hand_to_http(UniqueFd watcher) {
    const std::string peer = peer_name(watcher.get());
    if (!http_.adopt(std::move(watcher), peer)) {
        refuse(peer,
               fmt::format("{} watch over HTTP already, the limit", options_.limits.watchers_max));
    }
}

}  // namespace ddprun::rdzv
