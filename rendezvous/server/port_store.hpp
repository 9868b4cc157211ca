#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/store/net/store_server.hpp"

namespace ddprun::rdzv {

/// The store on the daemon's own port: for all clients, or for the members of one generation, as
/// PortClaim decides. Lives on the daemon's thread; the store itself has its own.
class PortStore {
public:
    /// `say` takes one line and is called on the store's thread.
    PortStore(const Limits& limits, StoreServer::Say say);

    /// One store for all clients that reach the port, until close().
    void serve_everybody();

    /// A fresh store for clients of these addresses (empty: all), of whom so many may come.
    void serve_members(const std::vector<std::string>& admitted, std::size_t clients);

    void close();

    [[nodiscard]] bool is_served() const { return !std::holds_alternative<NoStore>(state_); }

    /// How many clients may come at the same moment: the workers of the generation, or as many as
    /// the store of serve_everybody() admits.
    [[nodiscard]] std::size_t clients_expected() const;
    /// They may come from there.
    [[nodiscard]] bool expects(const sockaddr_storage& address) const;

    /// Hands over a client of which nothing was read. Only if is_served().
    void adopt(UniqueFd client);

private:
    struct NoStore {};
    struct ForEverybody {};
    struct ForMembers {
        std::size_t clients = 0;
        Admission admission;
    };

    const std::size_t clients_max_;
    StoreServer server_;
    std::variant<NoStore, ForEverybody, ForMembers> state_;
};

}  // namespace ddprun::rdzv
