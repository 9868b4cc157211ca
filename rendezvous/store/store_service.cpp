#include "rendezvous/store/store_service.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/store/store_session.hpp"

namespace ddprun::rdzv {

namespace {

constexpr int kAcceptedPerTurn = 128;  ///< then the clients that are here get a turn
constexpr std::size_t kLinesMax = 64;  ///< of each kind; what comes after is only counted
constexpr Milliseconds kAcceptPause{100};
constexpr std::uint64_t kListenerEvent = StoreService::kFirstEvent;
constexpr std::uint64_t kFirstClientEvent = kListenerEvent + 1;

/// epoll_ctl() without the struct.
[[nodiscard]] bool control(int epoll_fd, int operation, int fd, std::uint32_t events,
                           std::uint64_t number) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    return ::epoll_ctl(epoll_fd, operation, fd, &event) == 0;
}

UniqueFd open_spare() {
    return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

UniqueFd accept_one(int listener, sockaddr_storage& peer) {
    peer = {};
    socklen_t size = sizeof peer;
    return UniqueFd(::accept4(listener, static_cast<sockaddr*>(static_cast<void*>(&peer)), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace

StoreService::StoreService(int epoll_fd, const Limits& limits, const StoreServer::Say& say,
                           SharedStoreCounts& counts, UniqueFd socket,
                           const std::vector<std::string>& admitted)
    : epoll_fd_(epoll_fd),
      limits_(limits),
      say_(say),
      counts_(counts),
      listener_(std::move(socket)),
      spare_(open_spare()),
      admission_(admitted),
      core_(limits) {
    for (const std::string& text : admission_.unusable()) {
        this->say(
            fmt::format("store: {} in the list of admitted addresses is no numeric address "
                        "and admits nobody",
                        text));
    }
    // accept4() must never block, whoever made the socket.
    const int flags = ::fcntl(listener_.get(), F_GETFL);
    ::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK);
    if (!control(epoll_fd_, EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerEvent)) {
        this->say(
            fmt::format("store: {}", system_error(errno, "its socket cannot be watched").what));
    }
}

StoreService::~StoreService() {
    // The socket before the clients: who sees its connection end finds nobody listening. Others may
    // hold a duplicate of it, so closing alone would leave it in the epoll set.
    static_cast<void>(control(epoll_fd_, EPOLL_CTL_DEL, listener_.get(), 0, 0));
    listener_.reset();
    counts_.connected = 0;
    for (const std::unique_ptr<StoreSession>& session : sessions_) {
        if (session) {
            session->close();
        }
    }
}

void StoreService::on_event(std::uint64_t number, std::uint32_t events) {
    if (number == kListenerEvent) {
        accept_clients();
        return;
    }
    // The client may have been disconnected, even replaced, by an earlier event of the same turn.
    // Then nothing is there, or nothing is found to read.
    const std::uint64_t client = number - kFirstClientEvent;
    if (client < sessions_.size() && sessions_[client]) {
        sessions_[client]->on_event(events);
    }
    closed_.clear();
}

void StoreService::watch(StoreClient client, int fd, std::uint32_t before, std::uint32_t wanted) {
    const int operation = wanted == 0 ? EPOLL_CTL_DEL : before == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (!control(epoll_fd_, operation, fd, wanted, kFirstClientEvent + client.value())) {
        drop(client);
    }
}

void StoreService::say(std::string line) {
    if (say_) {
        say_(std::move(line));
    }
}

void StoreService::accept_clients() {
    for (int accepted = 0; accepted < kAcceptedPerTurn; ++accepted) {
        sockaddr_storage peer;
        UniqueFd fd = accept_one(listener_.get(), peer);
        if (fd.is_open()) {
            take(std::move(fd), peer);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            break;
        }
        if (errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting();
            return;
        }
        if (errno == EMFILE || errno == ENFILE) {
            const bool was_somebody_there = refuse_with_spare();
            if (!spare_.is_open()) {
                pause_accepting();
                return;
            }
            if (!was_somebody_there) {
                break;
            }
        }
        // Anything else concerns the one connection, which is gone already.
    }
}

/// A PyTorch client that is neither answered nor closed waits for ever. So when there are no
/// descriptors left, the spare one is given up for a moment, to take the connection and close it;
/// the client tries again later.
bool StoreService::refuse_with_spare() {
    spare_.reset();
    sockaddr_storage peer;
    UniqueFd fd = accept_one(listener_.get(), peer);
    const bool was_somebody_there = fd.is_open();
    if (was_somebody_there) {
        refuse(peer, "this process may open no more files; raise its limit (ulimit -n)");
    }
    fd.reset();
    spare_ = open_spare();
    return was_somebody_there;
}

void StoreService::pause_accepting() {
    static_cast<void>(control(epoll_fd_, EPOLL_CTL_MOD, listener_.get(), 0, kListenerEvent));
    accept_again_ = std::chrono::steady_clock::now() + kAcceptPause;
}

void StoreService::on_time(Instant now) {
    if (!accept_again_ || now < *accept_again_) {
        return;
    }
    accept_again_.reset();
    if (!spare_.is_open()) {
        spare_ = open_spare();
    }
    static_cast<void>(control(epoll_fd_, EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListenerEvent));
}

void StoreService::take(UniqueFd fd, const sockaddr_storage& peer) {
    if (!admission_.admits(peer)) {
        refuse(peer,
               "it is not the address of a node of this generation; if it belongs to the job (NAT, "
               "a sidecar), start with --store-admit any");
        return;
    }
    const std::size_t connected = sessions_.size() - free_numbers_.size();
    if (connected >= limits_.store_clients_max) {
        refuse(peer, fmt::format("{} clients are connected, and that is the limit", connected));
        return;
    }
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (free_numbers_.empty()) {
        free_numbers_.emplace_back(static_cast<std::uint32_t>(sessions_.size()));
        sessions_.emplace_back();
    }
    const StoreClient client = free_numbers_.back();
    free_numbers_.pop_back();
    ++counts_.admitted;
    ++counts_.connected;
    sessions_[client.value()] =
        std::make_unique<StoreSession>(*this, client, std::move(fd), limits_);
    settle();
}

void StoreService::refuse(const sockaddr_storage& peer, const std::string& reason) {
    ++counts_.refused;
    const std::string address = address_text(peer);
    if (named_.size() < kLinesMax && named_.insert(address).second) {
        say(fmt::format("store: refused a client from {}: {}", address, reason));
    }
}

void StoreService::cut_off(StoreClient client, const Error& reason) {
    ++counts_.cut_off;
    if (cut_offs_said_ < kLinesMax) {
        ++cut_offs_said_;
        say(fmt::format("store: disconnected a client from {}: {}",
                        sessions_[client.value()]->peer_text(), reason.what));
    }
    drop(client);
}

void StoreService::settle() {
    while (!replies_.empty() || !dropped_.empty()) {
        std::string_view bytes = replies_.bytes();
        for (const StoreReplies::Piece& piece : replies_.pieces()) {
            // None if the client was dropped in the last round, where others caused this reply.
            const std::unique_ptr<StoreSession>& session = sessions_[piece.client.value()];
            if (session && !session->send(bytes.substr(0, piece.size))) {
                drop(piece.client);
            }
            bytes.remove_prefix(piece.size);
        }
        replies_.clear();
        for (const StoreClient client : std::exchange(dropped_, {})) {
            std::unique_ptr<StoreSession> session = std::move(sessions_[client.value()]);
            if (session) {  // It may have been dropped twice.
                session->close();
                free_numbers_.push_back(client);
                --counts_.connected;
                core_.disconnected(client, replies_);
                closed_.push_back(std::move(session));
            }
        }
    }
}

}  // namespace ddprun::rdzv
