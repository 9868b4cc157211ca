#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// Joins that wait, unanswered: each node's last one. To read, it is a map.
class Parked {
public:
    using Map = std::map<ConnectionId, Join>;

    [[nodiscard]] Map::const_iterator begin() const { return all_.begin(); }
    [[nodiscard]] Map::const_iterator end() const { return all_.end(); }
    [[nodiscard]] bool contains(ConnectionId connection) const { return all_.contains(connection); }
    [[nodiscard]] std::size_t size() const { return all_.size(); }
    [[nodiscard]] bool empty() const { return all_.empty(); }
    /// As many nodes hold one generation as one of them says that it has. False: no generation is
    /// whole. Asked in every step, of thousands of joins.
    [[nodiscard]] bool may_be_whole() const;

    /// The connection of the node's earlier join, which waits no more.
    std::optional<ConnectionId> put(ConnectionId connection, const Join& message);
    void erase(ConnectionId connection);
    Map take_all();

private:
    /// How many hold it, by the number of nodes that they say it has.
    using Held = std::pair<Generation, std::string>;
    using Sizes = std::map<int, std::size_t>;

    Map all_;
    std::map<NodeId, ConnectionId> connection_of_;
    std::map<Held, Sizes> held_;
};

}  // namespace ddprun::rdzv
