// Shows the kernel's part of a store's work, for store.py: answers the requests of store_load with
// bytes of the right number and keeps nothing. One thread, one recv() and one send() each. Says its
// port on standard output and serves until standard input ends.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/os/unique_fd.hpp"
#include "rendezvous/store/net/store_server.hpp"
#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::test {
namespace {

constexpr std::size_t kNumberBytes = 8;
constexpr std::size_t kNonceBytes = 4;
constexpr std::size_t kValueBytes = 64;  ///< that store_load's GET gets

std::uint64_t number_at(std::string_view bytes, std::size_t place) {
    std::uint64_t number = 0;
    DDP_CHECK(place + sizeof number <= bytes.size(), place, bytes.size());
    std::memcpy(&number, bytes.data() + place, sizeof number);
    return number;
}

struct Answered {
    std::size_t request_bytes;
    std::size_t reply_bytes;
};

/// The first request of `bytes`, which holds whole ones.
Answered answer(std::string_view bytes) {
    using rdzv::StoreOpcode;
    const auto opcode = static_cast<StoreOpcode>(bytes.front());
    if (opcode == StoreOpcode::Validate) {
        return {1 + kNonceBytes, 0};
    }
    if (opcode == StoreOpcode::Ping) {
        return {1 + kNonceBytes, kNonceBytes};
    }
    const std::size_t key_end = 1 + kNumberBytes + number_at(bytes, 1);
    switch (opcode) {
        case StoreOpcode::Get:
            return {key_end, kNumberBytes + kValueBytes};
        case StoreOpcode::Add:
            return {key_end + kNumberBytes, kNumberBytes};
        default:
            break;
    }
    DDP_CHECK(opcode == StoreOpcode::Set, static_cast<int>(opcode));
    return {key_end + kNumberBytes + number_at(bytes, key_end), 0};
}

void serve_client(int fd) {
    static std::array<char, 4096> buffer;
    static constexpr std::array<char, kNumberBytes + kValueBytes> kReply{};
    const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count <= 0) {
        ::close(fd);
        return;
    }
    std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
    while (!bytes.empty()) {
        const Answered answered = answer(bytes);
        bytes.remove_prefix(answered.request_bytes);
        if (answered.reply_bytes > 0) {
            ::send(fd, kReply.data(), answered.reply_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
}

void watch(int epoll, int fd, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    DDP_CHECK(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, errno);
}

void serve(int listener) {
    const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    watch(epoll.get(), STDIN_FILENO, EPOLLIN);
    watch(epoll.get(), listener, EPOLLIN);
    std::array<epoll_event, 256> events;
    while (true) {
        const int count = ::epoll_wait(epoll.get(), events.data(), events.size(), -1);
        for (int i = 0; i < count; ++i) {
            const int fd = events[static_cast<std::size_t>(i)].data.fd;
            if (fd == STDIN_FILENO) {
                return;
            }
            if (fd == listener) {
                const int on = 1;
                const int client = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
                ::setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                watch(epoll.get(), client, EPOLLIN | EPOLLET);
            } else {
                serve_client(fd);
            }
        }
    }
}

}  // namespace
}  // namespace ddprun::test

int main() {
    using namespace ddprun;
    Result<rdzv::StoreSocket> socket = rdzv::listen_for_store("127.0.0.1", 0);
    DDP_CHECK(socket.has_value());
    fmt::print("{}\n", socket->port);
    std::fflush(stdout);
    test::serve(socket->fd.get());
    return 0;
}
