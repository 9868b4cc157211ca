#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/instant.hpp"
#include "base/tagged.hpp"

namespace ddprun::rdzv {

/// Connections whose nodes have nothing more to say but Goodbye: told to go and still connected.
class Departures {
public:
    [[nodiscard]] bool contains(ConnectionId connection) const { return all_.contains(connection); }
    [[nodiscard]] bool empty() const { return all_.empty(); }
    /// Null: it does not depart.
    [[nodiscard]] const NodeId* node_on(ConnectionId connection) const {
        const auto found = all_.find(connection);
        return found == all_.end() ? nullptr : &found->second.node;
    }

    /// It is to be closed at `until`.
    void add(ConnectionId connection, NodeId node, Instant until) {
        erase(connection);
        all_.emplace(connection, Departing{std::move(node), until});
        by_time_.emplace(until, connection);
    }
    void erase(ConnectionId connection) {
        if (const auto departing = all_.extract(connection)) {
            by_time_.erase({departing.mapped().until, connection});
        }
    }
    /// When the next one is to be closed.
    [[nodiscard]] std::optional<Instant> next() const {
        return by_time_.empty() ? std::nullopt : std::optional(by_time_.begin()->first);
    }
    /// Takes one out that is to be closed by `now`.
    std::optional<ConnectionId> take_due(Instant now) {
        if (by_time_.empty() || by_time_.begin()->first > now) {
            return std::nullopt;
        }
        const ConnectionId connection = by_time_.begin()->second;
        erase(connection);
        return connection;
    }

private:
    struct Departing {
        NodeId node;
        Instant until{};
    };

    std::map<ConnectionId, Departing> all_;
    std::set<std::pair<Instant, ConnectionId>> by_time_;
};

}  // namespace ddprun::rdzv
