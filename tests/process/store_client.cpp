#include "tests/process/store_client.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "rendezvous/store/core/admission.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv::store_test {

namespace {

constexpr int kPatienceMs = 60000;

}  // namespace

StoreClientSocket::StoreClientSocket(const std::string& host, std::uint16_t port,
                                     const std::optional<std::string>& from) {
    sockaddr_storage address{};
    socklen_t size = 0;
    REQUIRE(parse_address(host, port, address, size));
    fd_.reset(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(fd_.is_open());
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (from) {
        sockaddr_storage local{};
        socklen_t local_size = 0;
        REQUIRE(parse_address(*from, 0, local, local_size));
        REQUIRE(::bind(fd_.get(), static_cast<sockaddr*>(static_cast<void*>(&local)), local_size) ==
                0);
    }
    REQUIRE(::connect(fd_.get(), static_cast<sockaddr*>(static_cast<void*>(&address)), size) == 0);
}

bool StoreClientSocket::send(const std::string& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
        const ssize_t count =
            ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (count < 0) {
            return false;
        }
        sent += static_cast<std::size_t>(count);
    }
    return true;
}

std::size_t StoreClientSocket::send_some(const std::string& bytes) {
    const ssize_t count =
        ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return count < 0 ? 0 : static_cast<std::size_t>(count);
}

bool StoreClientSocket::wait_readable() {
    pollfd wanted{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&wanted, 1, kPatienceMs) == 1);
    return true;
}

std::string StoreClientSocket::receive(std::size_t size) {
    std::string received;
    std::array<char, 65536> buffer;
    while (received.size() < size && wait_readable()) {
        const ssize_t count =
            ::recv(fd_.get(), buffer.data(), std::min(buffer.size(), size - received.size()), 0);
        if (count <= 0) {
            break;
        }
        received.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return received;
}

std::string StoreClientSocket::receive_all() {
    return receive(std::string().max_size());
}

void StoreClientSocket::finish() {
    ::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace ddprun::rdzv::store_test
