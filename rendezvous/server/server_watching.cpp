// HTTP on the daemon's port: who watches its jobs.
#include <utility>

#include "rendezvous/server/server.hpp"

namespace ddprun::rdzv {

/// It is half-open until HTTP has admitted something that it asks for.
void Server::hand_to_http(ConnectionId id, UniqueFd watcher) {
    std::string peer = peer_name(watcher.get());
    std::optional<boost::asio::ip::tcp::socket> socket = take_socket(id, std::move(watcher));
    if (socket && !http_.adopt(id, {.socket = *std::move(socket), .tls = nullptr, .seen = {}},
                               std::move(peer))) {
        left(id);
    }
}

/// The same of one that has begun with TLS.
void Server::hand_to_http(Session& session) {
    Connection::Released released = session.connection.release();
    std::string& seen = std::get<Session::Watching>(session.state).seen;
    if (!http_.adopt(session.id,
                     {.socket = std::move(released.socket),
                      .tls = std::move(released.tls),
                      .seen = std::move(seen)},
                     session.peer)) {
        left(session.id);
    }
}

}  // namespace ddprun::rdzv
