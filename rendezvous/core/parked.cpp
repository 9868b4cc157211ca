#include "rendezvous/core/parked.hpp"

#include <algorithm>

namespace ddprun::rdzv {

bool Parked::may_be_whole() const {
    return std::any_of(held_.begin(), held_.end(), [](const auto& one) {
        const Sizes& sizes = one.second;
        std::size_t holders = 0;
        for (const auto& [size, count] : sizes) {
            holders += count;
        }
        return static_cast<int>(holders) >= sizes.begin()->first;
    });
}

std::optional<ConnectionId> Parked::put(ConnectionId connection, const Join& message) {
    std::optional<ConnectionId> earlier;
    if (const auto known = connection_of_.find(message.node); known != connection_of_.end()) {
        earlier = known->second;
        erase(*earlier);
    }
    all_.emplace(connection, message);
    connection_of_.emplace(message.node, connection);
    if (message.held) {
        ++held_[{message.held->generation, message.held->digest}][message.held->group_world_size];
    }
    return earlier;
}

void Parked::erase(ConnectionId connection) {
    const auto parked = all_.extract(connection);
    if (parked.empty()) {
        return;
    }
    const Join& message = parked.mapped();
    connection_of_.erase(message.node);
    if (!message.held) {
        return;
    }
    const auto held = held_.find({message.held->generation, message.held->digest});
    const auto size = held->second.find(message.held->group_world_size);
    if (--size->second == 0) {
        held->second.erase(size);
    }
    if (held->second.empty()) {
        held_.erase(held);
    }
}

Parked::Map Parked::take_all() {
    connection_of_.clear();
    held_.clear();
    return std::exchange(all_, {});
}

}  // namespace ddprun::rdzv
