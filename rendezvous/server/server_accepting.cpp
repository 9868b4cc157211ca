// Accepting connections. Until one speaks it is a newcomer, which costs little more than its
// descriptor: thousands may come at once, and what is not accepted soon the kernel drops.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>

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
constexpr std::size_t kAcceptedPerTurn = 1024;
constexpr std::uint64_t kListener = 0;  ///< in the epoll set; connections begin with 1

}  // namespace

/// One epoll set has the listener and the newcomers, each of whom is told of once.
asio::awaitable<void> Server::attend_newcomers() {
    while (!is_stopped_) {
        const auto [failure] = co_await arrivals_.async_wait(
            asio::posix::stream_descriptor::wait_read, asio::as_tuple(asio::use_awaitable));
        if (failure || is_stopped_) {
            break;
        }
        attend_some();
    }
}

/// Waking up takes longer than attending to a newcomer, and thousands may come one after another:
/// so it keeps looking for a moment.
void Server::attend_some() {
    Instant until{};
    std::size_t count = 0;
    do {
        const std::size_t more = look_for_arrivals();
        count += more;
        if (more > 0) {
            until = std::chrono::steady_clock::now() + patience_;
        }
    } while (count < kNewcomersPerTurn && !is_stopped_ && std::chrono::steady_clock::now() < until);
    // Together: the store's thread would take a processor from those who are still coming.
    for (UniqueFd& client : std::exchange(for_store_, {})) {
        hand_to_store(std::move(client));
    }
    end_if_idle();
}

/// How many there were. First of all who wants to come in: the kernel's queue for them is short,
/// and whom it has no room for tries again only after a second.
std::size_t Server::look_for_arrivals() {
    std::array<epoll_event, kNewcomersPerTurn> events;
    const int found =
        ::epoll_wait(arrivals_.native_handle(), events.data(), static_cast<int>(events.size()), 0);
    const std::span<const epoll_event> arrived(events.data(),
                                               static_cast<std::size_t>(std::max(found, 0)));
    const auto is_listener = [](const epoll_event& e) { return e.data.u64 == kListener; };
    std::size_t count =
        std::any_of(arrived.begin(), arrived.end(), is_listener) ? accept_some() : 0;
    for (const epoll_event& event : arrived) {
        if (!is_listener(event) && !is_stopped_) {
            hear(ConnectionId(event.data.u64));
            ++count;
        }
    }
    return count;
}

/// `operation`: EPOLL_CTL_ADD, or EPOLL_CTL_MOD, which needs no memory and cannot fail.
void Server::watch_listener(int operation, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = kListener;
    DDP_CHECK(::epoll_ctl(arrivals_.native_handle(), operation, listener_.get(), &event) == 0,
              errno);
}

/// Accepts no connection until then, or until there is room.
void Server::pause_accepting(Instant until) {
    is_full_ = true;
    watch_listener(EPOLL_CTL_MOD, 0);
    room_.expires_at(until);
    room_.async_wait([this](error_code) {
        is_full_ = false;
        if (!is_stopped_) {
            watch_listener(EPOLL_CTL_MOD, EPOLLIN);
        }
    });
}

/// Accepts who waits in the kernel's queue, while there is room. How many those were.
std::size_t Server::accept_some() {
    for (std::size_t count = 0; count < kAcceptedPerTurn; ++count) {
        const Instant now = std::chrono::steady_clock::now();
        if (const std::optional<Instant> until = make_room(half_open_.room(now))) {
            pause_accepting(*until);
            return count;
        }
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        UniqueFd fd(
            ::accept4(listener_.get(), generic(address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd.is_open()) {
            admit(now, std::move(fd), address);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return count;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            if (const std::optional<Instant> until = cannot_accept(now, errno)) {
                pause_accepting(*until);
                return count;
            }
        }
        // Else that connection is gone already.
    }
    return kAcceptedPerTurn;
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
        if (const std::optional<std::string> watcher = http_.evict(evict->oldest)) {
            refuse(*watcher, kWhy);
        } else if (const auto found = sessions_.find(evict->oldest); found != sessions_.end()) {
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
    if (::epoll_ctl(arrivals_.native_handle(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
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

/// A newcomer has spoken, or has gone. Its first byte shows its protocol, and is left where it is.
void Server::hear(ConnectionId id) {
    auto newcomer = newcomers_.extract(id);
    if (newcomer.empty()) {
        return;  // It made room for another.
    }
    UniqueFd fd = std::move(newcomer.mapped().fd);
    ::epoll_ctl(arrivals_.native_handle(), EPOLL_CTL_DEL, fd.get(), nullptr);
    char first = 0;
    if (::recv(fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
        left(id);
        refuse(peer_name(fd.get()), "it ended in the handshake");
    } else if (is_of_store(first)) {
        left(id);
        for_store_.push_back(std::move(fd));
    } else if (is_of_http(first)) {
        hand_to_http(id, std::move(fd));
    } else {
        open_session(id, newcomer.mapped().since, std::move(fd));
    }
}

void Server::open_session(ConnectionId id, Instant since, UniqueFd fd) {
    std::string peer = peer_name(fd.get());
    std::optional<tcp::socket> socket = take_socket(id, std::move(fd));
    if (!socket) {
        return;
    }
    const auto [session, is_new] = sessions_.try_emplace(
        id, id, *std::move(socket), options_.limits, std::move(peer),
        RendezvousHandshake(options_.secret, random_nonce(), options_.operator_secret),
        options_.tls);
    DDP_CHECK(is_new, id.value());
    asio::co_spawn(io_, serve(session->second, since + options_.limits.hello_timeout),
                   asio::detached);
}

/// Returns nothing if the connection was turned away.
std::optional<tcp::socket> Server::take_socket(ConnectionId id, UniqueFd fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ::getsockname(fd.get(), generic(address), &size);
    std::optional<tcp::socket> socket(std::in_place, io_);
    error_code failure;
    socket->assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd.get(), failure);
    if (failure) {
        left(id);
        refuse(peer_name(fd.get()), failure.message());
        return std::nullopt;
    }
    static_cast<void>(fd.release());
    return socket;
}

/// That connection is in the handshake no more.
void Server::left(ConnectionId id) {
    half_open_.leave(id);
    if (is_full_) {
        room_.cancel();
    }
}

}  // namespace ddprun::rdzv
