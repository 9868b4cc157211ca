#include "tests/bench/store_load_crowd.hpp"

#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/check.hpp"
#include "rendezvous/store/core/relayed_clients.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::test {

namespace {

namespace wire = rdzv::store_test;

constexpr std::uint32_t kNonce = 4711;
constexpr std::chrono::seconds kPatience{60};
constexpr std::size_t kScratchBytes = std::size_t{1} << 20;
constexpr std::size_t kEventsMax = 512;

const sockaddr* generic(const sockaddr_in& address) {
    return static_cast<const sockaddr*>(static_cast<const void*>(&address));
}

/// A socket bound to one of the target's source addresses.
UniqueFd open_socket(const StoreTarget& target, int flags, std::size_t index) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
    DDP_CHECK(fd.is_open(), errno);
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (target.source_addresses > 0) {
        ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        sockaddr_in from{};
        from.sin_family = AF_INET;
        from.sin_addr.s_addr =
            htonl(0x7f010001U + static_cast<std::uint32_t>(
                                    index % static_cast<std::size_t>(target.source_addresses)));
        DDP_CHECK(::bind(fd.get(), generic(from), sizeof from) == 0, errno);
    }
    return fd;
}

sockaddr_in address_of(const StoreTarget& target, std::size_t index) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(target.ports.at(index % target.ports.size()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

}  // namespace

UniqueFd connect_to_store(const StoreTarget& target) {
    UniqueFd fd = open_socket(target, 0, 0);
    const sockaddr_in address = address_of(target, 0);
    DDP_CHECK(::connect(fd.get(), generic(address), sizeof address) == 0, errno);
    return fd;
}

std::string store_hello() {
    return wire::validate() + wire::ping(kNonce);
}

std::string relayed(std::uint32_t clients, std::string_view request) {
    std::vector<std::uint32_t> numbers(clients);
    std::iota(numbers.begin(), numbers.end(), 1U);
    std::string out;
    rdzv::append_clients(out, numbers);
    return out.append(request);
}

std::size_t relayed_bytes(std::uint32_t clients, std::size_t reply_bytes) {
    return relayed(clients, {}).size() + sizeof(std::uint64_t) + reply_bytes;
}

StoreCrowd::StoreCrowd(StoreTarget target, std::size_t clients)
    : target_(target),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      clients_(clients),
      scratch_(kScratchBytes),
      events_(kEventsMax) {
    DDP_CHECK(epoll_.is_open(), errno);
}

StoreCrowd::~StoreCrowd() {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    for (const Client& client : clients_) {
        if (client.fd.is_open()) {
            ::setsockopt(client.fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
    }
}

void StoreCrowd::connect_all() {
    for (std::size_t index = 0; index < clients_.size(); ++index) {
        begin_connecting(index);
    }
    while (busy_ > 0) {
        turn([&](std::size_t index, std::uint32_t events) {
            Client& client = clients_[index];
            if (client.is_connecting && (events & EPOLLOUT) != 0) {
                greet(index);
            }
            if (client.fd.is_open() && (events & ~std::uint32_t{EPOLLOUT}) != 0) {
                read(index, [&](std::size_t, std::string_view) {
                    client.is_greeted = true;
                    greeting_us_.push_back(
                        std::chrono::duration<double, std::micro>(Clock::now() - client.asked_at)
                            .count());
                });
            }
        });
    }
}

void StoreCrowd::begin_connecting(std::size_t index) {
    Client& client = clients_[index];
    client.asked_at = Clock::now();
    client.fd = open_socket(target_, SOCK_NONBLOCK, index);
    const sockaddr_in address = address_of(target_, index);
    ++busy_;
    client.is_connecting = true;
    if (::connect(client.fd.get(), generic(address), sizeof address) != 0 && errno != EINPROGRESS) {
        lose(index);
        return;
    }
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.u64 = index;
    DDP_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, client.fd.get(), &event) == 0, errno);
}

/// In two pieces, as PyTorch's clients do.
void StoreCrowd::greet(std::size_t index) {
    Client& client = clients_[index];
    client.is_connecting = false;
    client.missing = kHelloReplyBytes;
    std::string ping = wire::ping(kNonce);
    if (target_.relayed_clients > 0) {
        client.missing = relayed_bytes(1, kHelloReplyBytes);
        ping = wire::opcode(rdzv::StoreOpcode::Relay) + wire::nonce(rdzv::kRelayVersion) +
               relayed(target_.relayed_clients, wire::opcode(rdzv::StoreOpcode::Enter)) +
               relayed(1, ping);
    }
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = index;
    const std::string validate = wire::validate();
    if (::send(client.fd.get(), validate.data(), validate.size(), MSG_NOSIGNAL) < 0 ||
        ::send(client.fd.get(), ping.data(), ping.size(), MSG_NOSIGNAL) < 0 ||
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.fd.get(), &event) != 0) {
        lose(index);
    }
}

void StoreCrowd::ask(std::size_t index, std::string_view request, std::size_t reply_bytes) {
    Client& client = clients_[index];
    if (!client.fd.is_open()) {
        return;
    }
    if (reply_bytes > 0) {
        DDP_CHECK(client.missing == 0, index, client.missing);
        ++busy_;
        client.missing = reply_bytes;
        client.filled = 0;
        client.asked_at = now_;
    }
    // Requests of a crowd are short: what a connection does not take at once is an error.
    const ssize_t sent = ::send(client.fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(request.size()) && reply_bytes > 0) {
        lose(index);
    }
}

void StoreCrowd::run(const OnReply& on_reply) {
    while (busy_ > 0) {
        turn([&](std::size_t index, std::uint32_t) {
            now_ = Clock::now();
            read(index, on_reply);
        });
    }
}

/// Never sleeps: to wake this thread would cost the server several microseconds a reply, which it
/// does not pay where clients are on other machines. It does let the server have this core.
void StoreCrowd::turn(const std::function<void(std::size_t, std::uint32_t)>& on_event) {
    const Clock::time_point deadline = Clock::now() + kPatience;
    int count = 0;
    while (count == 0) {
        count = ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), 0);
        DDP_CHECK(count >= 0 && Clock::now() < deadline, count, errno, busy_);
        if (count == 0) {
            ::sched_yield();
        }
    }
    for (std::size_t at = 0; at < static_cast<std::size_t>(count); ++at) {
        const std::size_t index = events_[at].data.u64;
        if (clients_[index].fd.is_open()) {
            on_event(index, events_[at].events);
        }
    }
}

void StoreCrowd::read(std::size_t index, const OnReply& on_reply) {
    Client& client = clients_[index];
    const ssize_t count = ::recv(client.fd.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    const auto size = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    if (count <= 0 || size > client.missing) {
        lose(index);
        return;
    }
    // Only short replies are examined, and those come in one piece or are joined here.
    const std::size_t kept = std::min(size, client.reply.size() - client.filled);
    std::memcpy(client.reply.data() + client.filled, scratch_.data() + size - kept, kept);
    client.filled += kept;
    client.missing -= size;
    if (client.missing == 0) {
        --busy_;
        on_reply(index, std::string_view(client.reply.data(), client.filled));
    }
}

void StoreCrowd::lose(std::size_t index) {
    Client& client = clients_[index];
    client.fd.reset();
    if (client.is_connecting || client.missing > 0) {
        --busy_;
    }
    client.missing = 0;
    client.is_connecting = false;
    ++lost_;
}

}  // namespace ddprun::test
