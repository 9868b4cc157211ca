#include "rendezvous/store/relay/relay.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"
#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/store/net/socket.hpp"
#include "rendezvous/store/protocol/request.hpp"
#include "rendezvous/store/relay/relay_core.hpp"

namespace ddprun::rdzv {

namespace {

/// VALIDATE and RELAY: how a relay's connection begins.
std::string relay_hello() {
    std::string hello(1, static_cast<char>(StoreOpcode::Validate));
    append_u32(hello, kStoreMagic);
    hello.push_back(static_cast<char>(StoreOpcode::Relay));
    append_u32(hello, kRelayVersion);
    return hello;
}

/// The socket around a RelayCore.
class Relay final : public StoreBackend {
public:
    Relay(const Limits& limits, StoreAddress store, StoreServer::Say say)
        : limits_(limits), store_(std::move(store)), say_(std::move(say)), core_(limits_) {}

    ~Relay() override { unwatch(); }
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    Result<void> handle(StoreClient client, std::string_view request,
                        [[maybe_unused]] StoreReplies& replies,
                        const std::shared_ptr<const void>& owner) override {
        core_.handle(client, request, owner);
        return {};
    }

    void disconnected(StoreClient client, [[maybe_unused]] StoreReplies& replies) override {
        core_.disconnected(client);
    }

    bool takes_relays() const override { return false; }
    bool has_room() const override {
        return unsent_.size() + core_.waiting_bytes() <= limits_.send_queue_bytes_max;
    }

    void attach(int epoll_fd, std::uint64_t event) override {
        epoll_fd_ = epoll_fd;
        event_ = event;
    }

    void on_event(std::uint32_t events, StoreReplies& replies) override {
        if (!socket_.is_open()) {
            return;  // Lost earlier in the same turn.
        }
        if (connecting_until_ && !end_connecting(replies)) {
            return;
        }
        if (!unsent_.send(socket_.get())) {
            lose(replies);
            return;
        }
        if ((events & ~std::uint32_t{EPOLLOUT}) != 0 && !read(replies)) {
            return;
        }
        update_watch(replies);
    }

    void end_turn(StoreReplies& replies) override {
        const std::vector<RelayFrames> frames = core_.take_frames();
        if (frames.empty() || (!socket_.is_open() && !connect(replies))) {
            return;
        }
        for (const RelayFrames& some : frames) {
            unsent_.add(some.bytes);
            if (some.shared.owner != nullptr) {
                unsent_.add(some.shared);
            }
        }
        if (!connecting_until_ && !unsent_.send(socket_.get())) {
            lose(replies);
            return;
        }
        update_watch(replies);
    }

    std::optional<Instant> next_deadline() const override { return connecting_until_; }

    void on_time(Instant now, StoreReplies& replies) override {
        if (connecting_until_ && *connecting_until_ <= now) {
            fail(fmt::format("no answer for {} ms", limits_.connect_timeout.count()), replies);
        }
    }

private:
    /// Begins to; on failure every client is disconnected.
    bool connect(StoreReplies& replies) {
        sockaddr_storage address{};
        socklen_t size = 0;
        if (!parse_address(store_.host, store_.port, address, size)) {
            fail("it is no numeric address", replies);
            return false;
        }
        socket_.reset(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!socket_.is_open() ||
            (::connect(socket_.get(), generic(address), size) != 0 && errno != EINPROGRESS)) {
            fail(std::generic_category().message(errno), replies);
            return false;
        }
        const int on = 1;
        ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connecting_until_ = std::chrono::steady_clock::now() + limits_.connect_timeout;
        unsent_.add(relay_hello());
        return true;
    }

    bool end_connecting(StoreReplies& replies) {
        int failure = 0;
        socklen_t size = sizeof failure;
        ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
        if (failure != 0) {
            fail(std::generic_category().message(failure), replies);
            return false;
        }
        connecting_until_.reset();
        return true;
    }

    /// Once a turn: the epoll set reports again what is left.
    bool read(StoreReplies& replies) {
        const ssize_t count = ::recv(socket_.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return true;
        }
        if (count <= 0) {
            lose(replies);
            return false;
        }
        const Result<void> taken =
            core_.take_replies({scratch_.data(), static_cast<std::size_t>(count)}, replies);
        if (!taken) {
            fail(taken.error().what, replies);
        }
        return taken.has_value();
    }

    void fail(const std::string& why, StoreReplies& replies) {
        if (say_) {
            say_(fmt::format("relay: the workers' store at {}:{} cannot be used: {}", store_.host,
                             store_.port, why));
        }
        lose(replies);
    }

    void lose(StoreReplies& replies) {
        core_.lose_store(replies);
        unwatch();
        socket_.reset();
        connecting_until_.reset();
        unsent_ = {};
    }

    /// Closing alone is not enough while a child that was just forked holds a duplicate.
    void unwatch() {
        if (std::exchange(watched_, 0U) != 0) {
            ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, socket_.get(), nullptr);
        }
    }

    void update_watch(StoreReplies& replies) {
        const bool waits_to_send = connecting_until_ || !unsent_.empty();
        const std::uint32_t wanted = std::uint32_t{EPOLLIN} | (waits_to_send ? EPOLLOUT : 0U);
        if (wanted == watched_) {
            return;
        }
        epoll_event event{};
        event.events = wanted;
        event.data.u64 = event_;
        const int operation = watched_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
        if (::epoll_ctl(epoll_fd_, operation, socket_.get(), &event) != 0) {
            fail(std::generic_category().message(errno), replies);
            return;
        }
        watched_ = wanted;
    }

    const Limits limits_;
    const StoreAddress store_;
    const StoreServer::Say say_;
    RelayCore core_;
    int epoll_fd_ = -1;
    std::uint64_t event_ = 0;
    UniqueFd socket_;
    std::optional<Instant> connecting_until_;
    std::uint32_t watched_ = 0;
    StoreOutbox unsent_;
    std::array<char, 65536> scratch_;
};

}  // namespace

std::unique_ptr<StoreBackend> make_relay(const Limits& limits, const StoreAddress& store,
                                         StoreServer::Say say) {
    return std::make_unique<Relay>(limits, store, std::move(say));
}

}  // namespace ddprun::rdzv
