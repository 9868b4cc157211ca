// Accepting connections, and closing those in the handshake that are in the way of others.
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "rendezvous/server/server_impl.hpp"
#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/wire/handshake.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

asio::awaitable<void> Server::Impl::accept_agents(Self self) {
    while (!self->is_stopped_) {
        if (const std::optional<Instant> until =
                self->make_room(self->half_open_.room(std::chrono::steady_clock::now()))) {
            // The others wait in the kernel's queue.
            self->room_.expires_at(*until);
            const auto [woken] =
                co_await self->room_.async_wait(asio::as_tuple(asio::use_awaitable));
            static_cast<void>(woken);
            continue;
        }
        auto [failure, socket] =
            co_await self->acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
        if (self->is_stopped_) {
            break;
        }
        if (!failure) {
            self->admit(std::move(socket));
        } else if (const std::optional<Instant> until = self->cannot_accept(failure)) {
            self->room_.expires_at(*until);
            const auto [woken] =
                co_await self->room_.async_wait(asio::as_tuple(asio::use_awaitable));
            static_cast<void>(woken);
        }
    }
}

/// When to look again, if there is no room and none can be made now.
std::optional<Instant> Server::Impl::make_room(const HalfOpen::Room& room) {
    if (const auto* const full = std::get_if<HalfOpen::Full>(&room)) {
        return full->until;
    }
    if (const auto* const evict = std::get_if<HalfOpen::Evict>(&room)) {
        half_open_.leave(evict->oldest);
        if (const auto found = sessions_.find(evict->oldest); found != sessions_.end()) {
            found->second->why_closed = "it had not proved itself when newer connections came";
            found->second->connection->close();
        }
    }
    return std::nullopt;
}

/// When to try again; nothing: at once.
std::optional<Instant> Server::Impl::cannot_accept(const error_code& failure) {
    if (failure != asio::error::no_descriptors && failure != asio::error::no_memory &&
        failure != asio::error::no_buffer_space) {
        return std::nullopt;  // That connection is gone already.
    }
    const Instant now = std::chrono::steady_clock::now();
    if (const auto line =
            refusals_.note(now, fmt::format("cannot accept a connection: {}", failure.message()))) {
        log(*line);
    }
    if (const std::optional<HalfOpen::Room> room = half_open_.room_without_descriptors(now)) {
        return make_room(*room);
    }
    // Trying again at once would only burn the CPU.
    return now + options_.limits.reconnect_backoff_max;
}

void Server::Impl::admit(tcp::socket socket) {
    error_code gone;
    const tcp::endpoint peer = socket.remote_endpoint(gone);
    if (gone) {
        return;
    }
    sockaddr_storage address{};
    std::memcpy(&address, peer.data(), peer.size());
    const std::string source = address_text(address);
    const std::string name = fmt::format("{} port {}", source, peer.port());
    const bool is_expected = store_.expects(address);
    const Instant now = std::chrono::steady_clock::now();
    if (make_room(half_open_.room_of(now, source, is_expected))) {
        refuse(name, "as many connections of its address as may are in the handshake");
        return;
    }
    const ConnectionId id(++last_id_);
    const auto session =
        std::make_shared<Session>(id, std::move(socket), options_.limits, name,
                                  RendezvousHandshake(options_.secret, random_nonce()));
    session->tls = options_.tls;
    sessions_.emplace(id, session);
    half_open_.enter(now, id, source, is_expected);
    asio::co_spawn(io_, serve(shared_from_this(), session), asio::detached);
}

}  // namespace ddprun::rdzv
