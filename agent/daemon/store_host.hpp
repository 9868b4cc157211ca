#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "agent/core/supervisor.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/protocol/limits.hpp"
#include "rendezvous/store/store_server.hpp"

namespace ddprun::agent {

/// The workers' store on this node, and the socket that waits for the next generation's. Owned and
/// called by the agent's thread; `say` is called on the store's.
class StoreHost {
public:
    /// `port`: 0, the kernel chooses one anew for each generation.
    StoreHost(const rdzv::Limits& limits, std::uint16_t port,
              std::function<void(const std::string& line)> say);

    /// Answers OpenStore: where it listens. The error says address, port and reason.
    [[nodiscard]] Result<rdzv::StoreAddress> open(const std::string& host);

    /// On the socket that open() made, which is used up by this.
    void serve(ServeStore order);

    void close() { server_.close(); }

private:
    std::uint16_t port_;
    UniqueFd next_;   ///< for the next generation, should this node serve it
    UniqueFd fixed_;  ///< with a fixed port: kept for all generations
    rdzv::StoreServer server_;
};

}  // namespace ddprun::agent
