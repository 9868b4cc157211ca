#pragma once

#include <fcntl.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/store/net/store_server.hpp"
#include "tests/process/store_client.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv::store_test {

inline const std::string kLoopback = "127.0.0.1";
inline const std::string kHello = validate() + ping(1);

/// A server on a port of the kernel's choice; the socket stays open here for further stores.
class Server {
public:
    explicit Server(const std::string& host = kLoopback, Limits limits = {})
        : server_(limits, [this](std::string line) { say(std::move(line)); }) {
        Result<StoreSocket> socket = listen_for_store(host, 0);
        REQUIRE(socket.has_value());
        socket_ = std::move(socket->fd);
        port_ = socket->port;
    }

    void serve(std::vector<std::string> admitted = {}) {
        server_.serve(duplicate(), std::move(admitted));
    }

    /// A copy of the socket's descriptor.
    UniqueFd duplicate() { return UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0)); }

    StoreClientSocket connect() { return StoreClientSocket(kLoopback, port_); }

    /// A client that the store has answered. As PyTorch's do, it tries again when it was held up
    /// for so long between connecting and VALIDATE that it was disconnected.
    StoreClientSocket enter() {
        for (int attempt = 0; attempt < 10; ++attempt) {
            StoreClientSocket client = connect();
            if (client.send(kHello) && client.receive(4) == nonce(1)) {
                return client;
            }
        }
        FAIL("the store does not answer");
        return connect();
    }

    StoreServer& operator*() { return server_; }
    StoreServer* operator->() { return &server_; }
    std::uint16_t port() const { return port_; }

    std::vector<std::string> lines() {
        const std::lock_guard lock(mutex_);
        return lines_;
    }

    void say(std::string line) {
        const std::lock_guard lock(mutex_);
        lines_.push_back(std::move(line));
    }

private:
    UniqueFd socket_;
    std::uint16_t port_ = 0;
    std::mutex mutex_;
    std::vector<std::string> lines_;
    StoreServer server_;
};

inline std::string ask(StoreClientSocket& client, const std::string& request,
                       std::size_t reply_bytes) {
    REQUIRE(client.send(request));
    return client.receive(reply_bytes);
}

}  // namespace ddprun::rdzv::store_test
