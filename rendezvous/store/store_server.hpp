#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/protocol/limits.hpp"

namespace ddprun::rdzv {

/// A bound and listening TCP socket and the port the kernel gave it.
struct StoreSocket {
    UniqueFd fd;
    std::uint16_t port = 0;
};

/// Binds and listens on the numeric address `host` (never a name: no look-ups) with the kernel's
/// largest backlog. Port 0 lets the kernel choose. Failure names host, port and reason.
[[nodiscard]] Result<StoreSocket> listen_for_store(const std::string& host, std::uint16_t port);

/// Serves one generation's store at a time on its own thread and io_context. Clients that connected
/// to the socket before serve() wait in the kernel's backlog and are answered then. The thread is
/// started by the first serve(). All methods are called by one (other) thread and return at once,
/// except the destructor, which joins.
class StoreServer {
public:
    explicit StoreServer(Limits limits);
    ~StoreServer();
    StoreServer(const StoreServer&) = delete;
    StoreServer& operator=(const StoreServer&) = delete;

    /// Starts a fresh, empty store on `socket`, a listening descriptor; an earlier one is closed
    /// first. Clients from addresses outside `admitted` are disconnected; an empty list admits all.
    void serve(UniqueFd socket, std::vector<std::string> admitted);

    /// Disconnects all clients, closes the socket, forgets all keys.
    void close();

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
