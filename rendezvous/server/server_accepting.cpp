// Accepting connections. Until one speaks it is a newcomer, which costs little more than its
// descriptor: thousands may come at once, and what is not accepted soon the kernel drops.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/server/server.hpp"
#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/wire/handshake.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kNewcomersPerTurn = 256;  ///< then the others get their turn

sockaddr* generic(sockaddr_storage& address) {
    return static_cast<sockaddr*>(static_cast<void*>(&address));
}

}  // namespace

asio::awaitable<void> Server::accept_newcomers() {
    while (!is_stopped_) {
        if (const std::optional<Instant> until = accept_some()) {
            is_full_ = true;
            room_.expires_at(*until);
            const auto [woken] = co_await room_.async_wait(asio::as_tuple(asio::use_awaitable));
            static_cast<void>(woken);
            is_full_ = false;
            continue;
        }
        const auto [failure] = co_await acceptor_.async_wait(tcp::acceptor::wait_read,
                                                             asio::as_tuple(asio::use_awaitable));
        static_cast<void>(failure);
    }
}

/// Accepts who waits in the kernel's queue. When to go on, if there is no room; nothing: when
/// somebody comes.
std::optional<Instant> Server::accept_some() {
    for (std::size_t i = 0; i < kNewcomersPerTurn; ++i) {
        const Instant now = std::chrono::steady_clock::now();
        if (const std::optional<Instant> until = make_room(half_open_.room(now))) {
            return until;
        }
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        UniqueFd fd(::accept4(acceptor_.native_handle(), generic(address), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd.is_open()) {
            admit(now, std::move(fd), address);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            break;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            if (const std::optional<Instant> until = cannot_accept(now, errno)) {
                return until;
            }
        }
        // Else that connection is gone already.
    }
    return std::nullopt;
}

/// When to try again; nothing: at once.
std::optional<Instant> Server::cannot_accept(Instant now, int errno_value) {
    if (const auto line =
            refusals_.note(now, system_error(errno_value, "cannot accept a connection").what)) {
        log(*line);
    }
    if (const std::optional<HalfOpen::Room> room = half_open_.room_without_descriptors(now)) {
        return make_room(*room);
    }
    // Trying again at once would only burn the CPU.
    return now + options_.limits.reconnect_backoff_max;
}

/// When to look again, if there is no room and none can be made now.
std::optional<Instant> Server::make_room(const HalfOpen::Room& room) {
    if (const auto* const full = std::get_if<HalfOpen::Full>(&room)) {
        return full->until;
    }
    if (const auto* const evict = std::get_if<HalfOpen::Evict>(&room)) {
        constexpr const char* kWhy = "it had not proved itself when newer connections came";
        half_open_.leave(evict->oldest);
        if (const auto found = sessions_.find(evict->oldest); found != sessions_.end()) {
            found->second.state = Session::Evicted{kWhy};
            found->second.connection.close();
        } else if (const auto newcomer = newcomers_.extract(evict->oldest)) {
            refuse(peer_name(newcomer.mapped().fd.get()), kWhy);
        }
    }
    return std::nullopt;
}

void Server::admit(Instant now, UniqueFd fd, const sockaddr_storage& address) {
    const std::string source = address_text(address);
    const bool is_expected = store_.expects(address);
    if (make_room(half_open_.room_of(now, source, is_expected))) {
        refuse(peer_name(fd.get()),
               "as many connections of its address as may are in the handshake");
        return;
    }
    const ConnectionId id(++last_id_);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLONESHOT;
    event.data.u64 = id.value();
    if (::epoll_ctl(spoke_.native_handle(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
        refuse(peer_name(fd.get()), system_error(errno, "it cannot be listened to").what);
        return;
    }
    half_open_.enter(now, id, source, is_expected);
    newcomers_.emplace_hint(newcomers_.end(), id, Newcomer{std::move(fd), now});
    if (newcomers_.size() == 1) {
        limit_silence();
    }
}

/// Newcomers are in the order of their coming, and the first one's time is over first.
void Server::limit_silence() {
    silence_.expires_at(newcomers_.begin()->second.since + options_.limits.hello_timeout);
    silence_.async_wait([this](error_code cancelled) {
        if (cancelled || is_stopped_) {
            return;
        }
        const Instant now = std::chrono::steady_clock::now();
        while (!newcomers_.empty() &&
               newcomers_.begin()->second.since + options_.limits.hello_timeout <= now) {
            const auto silent = newcomers_.extract(newcomers_.begin());
            left(silent.key());
            refuse(peer_name(silent.mapped().fd.get()), "it said nothing");
        }
        if (!newcomers_.empty()) {
            limit_silence();
        }
        end_if_idle();
    });
}

asio::awaitable<void> Server::hear_newcomers() {
    while (!is_stopped_) {
        const auto [failure] = co_await spoke_.async_wait(asio::posix::stream_descriptor::wait_read,
                                                          asio::as_tuple(asio::use_awaitable));
        if (failure || is_stopped_) {
            break;
        }
        hear_some();
    }
}

void Server::hear_some() {
    std::array<epoll_event, kNewcomersPerTurn> events;
    const int count =
        ::epoll_wait(spoke_.native_handle(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count && !is_stopped_; ++i) {
        hear(ConnectionId(events.at(static_cast<std::size_t>(i)).data.u64));
    }
    end_if_idle();
}

/// A newcomer has spoken, or has gone. Its first byte tells who it is, and is left where it is.
void Server::hear(ConnectionId id) {
    auto newcomer = newcomers_.extract(id);
    if (newcomer.empty()) {
        return;  // It made room for another.
    }
    UniqueFd fd = std::move(newcomer.mapped().fd);
    ::epoll_ctl(spoke_.native_handle(), EPOLL_CTL_DEL, fd.get(), nullptr);
    char first = 0;
    if (::recv(fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
        left(id);
        refuse(peer_name(fd.get()), "it ended in the handshake");
    } else if (is_of_store(first)) {
        left(id);
        hand_to_store(std::move(fd));
    } else {
        open_session(id, newcomer.mapped().since, std::move(fd));
    }
}

void Server::open_session(ConnectionId id, Instant since, UniqueFd fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ::getsockname(fd.get(), generic(address), &size);
    std::string peer = peer_name(fd.get());
    tcp::socket socket(io_);
    error_code failure;
    socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd.get(), failure);
    if (failure) {
        left(id);
        refuse(peer, failure.message());
        return;
    }
    static_cast<void>(fd.release());
    const auto [session, is_new] =
        sessions_.try_emplace(id, id, std::move(socket), options_.limits, std::move(peer),
                              RendezvousHandshake(options_.secret, random_nonce()), options_.tls);
    DDP_CHECK(is_new, id.value());
    asio::co_spawn(io_, serve(session->second, since + options_.limits.hello_timeout),
                   asio::detached);
}

/// That connection is in the handshake no more.
void Server::left(ConnectionId id) {
    half_open_.leave(id);
    if (is_full_) {
        room_.cancel();
    }
}

}  // namespace ddprun::rdzv
