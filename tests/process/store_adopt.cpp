// Clients that came in on another server's port.

#include <sys/socket.h>

#include <array>
#include <string>
#include <utility>

#include "tests/process/store_fixture.hpp"

namespace ddprun::rdzv::store_test {

namespace {

/// A port on which something else is told apart from store clients by the first bytes.
class Port {
public:
    Port() {
        Result<StoreSocket> socket = listen_for_store(kLoopback, 0);
        REQUIRE(socket.has_value());
        number_ = socket->port;
        fd_ = std::move(socket->fd);
    }

    /// A client that has sent `bytes`, and its other end, from which `read` bytes have been read.
    struct Arrived {
        StoreClientSocket client;
        UniqueFd fd;
        std::string first_bytes;
    };
    Arrived arrive(const std::string& bytes, std::size_t read) {
        StoreClientSocket client(kLoopback, number_);
        REQUIRE(client.send(bytes));
        UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        REQUIRE(fd.is_open());
        std::string first(read, '\0');
        REQUIRE(::recv(fd.get(), first.data(), read, MSG_WAITALL) == static_cast<ssize_t>(read));
        return {std::move(client), std::move(fd), std::move(first)};
    }

private:
    std::uint16_t number_ = 0;
    UniqueFd fd_;
};

}  // namespace

TEST_CASE("a client that came in elsewhere is served, whatever has been read from it before") {
    const std::string bytes = kHello + set("k", "1") + get("k");
    const std::size_t read = GENERATE(std::size_t{1}, std::size_t{5}, std::size_t{7},
                                      std::size_t{20}, std::string::npos);
    Port port;
    StoreServer server{Limits{}};
    server.serve_adopted({});
    Port::Arrived arrived = port.arrive(bytes, std::min(read, bytes.size()));
    server.adopt(std::move(arrived.fd), arrived.first_bytes);
    CHECK(arrived.client.receive(13) == nonce(1) + text("1"));
    Port::Arrived other = port.arrive(kHello, 1);
    server.adopt(std::move(other.fd), other.first_bytes);
    CHECK(other.client.receive(4) == nonce(1));
    CHECK(ask(other.client, get("k"), 9) == text("1"));
    CHECK(server.counts().admitted == 2);
    server.close();
    CHECK(arrived.client.receive_all().empty());
}

TEST_CASE("bad first bytes disconnect, and so does coming from elsewhere or for no store") {
    Port port;
    StoreServer server{Limits{}};
    const auto is_disconnected = [&](const std::string& bytes) {
        Port::Arrived arrived = port.arrive(bytes, bytes.size());
        server.adopt(std::move(arrived.fd), arrived.first_bytes);
        return arrived.client.receive_all().empty();
    };
    CHECK(is_disconnected(kHello));
    server.serve_adopted({});
    CHECK(is_disconnected("GET / HTTP/1.1\r\n"));
    CHECK(server.counts().cut_off == 1);
    server.serve_adopted({"127.0.0.2"});
    CHECK(is_disconnected(kHello));
    CHECK(server.counts().refused == 1);
    server.close();
    CHECK(is_disconnected(kHello));
    CHECK(server.counts().connected == 0);
}

TEST_CASE("a client handed over before a new store is served does not enter that one") {
    Port port;
    StoreServer server{Limits{}};
    server.serve_adopted({});
    Port::Arrived old = port.arrive(kHello + set("k", "1"), 5);
    server.adopt(std::move(old.fd), old.first_bytes);
    server.serve_adopted({});
    Port::Arrived fresh = port.arrive(kHello + opcode(StoreOpcode::GetNumKeys), 5);
    server.adopt(std::move(fresh.fd), fresh.first_bytes);
    CHECK(fresh.client.receive(12) == nonce(1) + number(0));
    const std::string heard = old.client.receive_all();
    CHECK((heard.empty() || heard == nonce(1)));
}

TEST_CASE("a world that this machine has no room for is warned of") {
    CHECK(store_capacity_warnings(0).empty());
    const std::vector<std::string> lines = store_capacity_warnings(100'000'000);
    REQUIRE(lines.size() == 2);
    CHECK(lines[0].ends_with("sysctl -w net.core.somaxconn=100000000"));
    CHECK(lines[1].ends_with("raise the hard limit: ulimit -Hn 100000064"));
}

}  // namespace ddprun::rdzv::store_test
