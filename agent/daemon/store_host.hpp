#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/contract/effects.hpp"
#include "agent/watch/chronicle.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "rendezvous/store/net/store_server.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// The workers' store on this node, or the relay to another node's, and the socket that waits for
/// the next generation's store. It keeps the port for a store that rank 0 serves itself. Owned
/// and called by the agent's thread; `say` is called on the store's, too.
class StoreHost {
public:
    /// Whose store it is. Rank 0's is made by PyTorch in its worker, as often as that likes.
    enum class Server { Agent, Rank0 };

    /// `port`: 0, the kernel chooses one anew for each generation.
    StoreHost(const Limits& limits, Server server, std::uint16_t port, rdzv::StoreServer::Say say);

    /// Answers OpenStore, before each generation: where it listens, or rank 0 will. The error says
    /// address, port and reason.
    [[nodiscard]] Result<StoreAddress> open(const std::string& host);

    /// On the socket that open() made; one on a port that is not fixed is used up by this. For
    /// rank 0 that port is kept until close().
    void serve(ServeStore order);

    /// Serves a relay to the store of `start` (its relayed_store) on a port of the kernel's choice
    /// on 127.0.0.1, and gives the workers that address as their store's. If no relay can be
    /// served, a line says so, nothing changes, and the workers dial the store itself.
    void relay(StartWorkers& start);

    void close();

    /// Returns the operations that its stores have answered so far.
    [[nodiscard]] std::vector<rdzv::StoreOperations> operations() const;

    /// Returns how many of these operations there were but those by which clients only look, as
    /// NCCL's threads do every second.
    [[nodiscard]] std::uint64_t requests() const;

    /// As StoreServer::ask_who_waits().
    void ask_who_waits(std::function<void(rdzv::StoreWaits)> answer) {
        server_.ask_who_waits(std::move(answer));
    }

    /// When the store had all its clients, and when the group was ready: estimates.
    [[nodiscard]] Estimates estimates() const;
    void end_estimates() { server_.end_init(); }

private:
    /// Nothing listens for the next generation.
    struct NotOpen {};
    /// On a port of the kernel's choice, for the next generation, should this node serve it.
    struct OpenOnce {
        UniqueFd socket;
    };
    /// On the fixed port, for all generations: the port outlives a generation, its store does not.
    struct OpenForAll {
        UniqueFd socket;
        UniqueFd next;  ///< a copy, for the next generation's store
    };

    const Limits limits_;
    const Server kind_;
    const std::uint16_t port_;  ///< 0: not fixed
    const rdzv::StoreServer::Say say_;
    std::variant<NotOpen, OpenOnce, OpenForAll> readiness_;
    UniqueFd kept_;  ///< rank 0's port, while its generation runs
    rdzv::StoreServer server_;
};

}  // namespace ddprun::agent
