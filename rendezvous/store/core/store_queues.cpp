#include "rendezvous/store/core/store_queues.hpp"

#include <algorithm>
#include <utility>

namespace ddprun::rdzv {

void StoreQueues::push(std::string_view name, StoreValue element) {
    auto found = queues_.find(name);
    if (found == queues_.end()) {
        found = queues_.try_emplace(std::string(name)).first;
    }
    found->second.elements.push_back(std::move(element));
}

std::size_t StoreQueues::pop(std::string_view name, StoreValue& element) {
    const auto found = queues_.find(name);
    if (found == queues_.end()) {
        return 0;
    }
    Queue& queue = found->second;
    const std::size_t length = queue.elements.size();
    element = std::move(queue.elements.front());
    queue.elements.pop_front();
    // An element that somebody was told of has been taken by another client: that news is void.
    while (queue.told.size() > queue.elements.size()) {
        const auto [begin, end] = told_.equal_range(queue.told.front());
        told_.erase(
            std::find_if(begin, end, [&](const auto& told) { return told.second == name; }));
        queue.told.pop_front();
    }
    if (queue.elements.empty()) {
        queues_.erase(found);
    }
    return length;
}

std::size_t StoreQueues::length(std::string_view name) const {
    const auto found = queues_.find(name);
    return found == queues_.end() ? 0 : found->second.elements.size();
}

void StoreQueues::offer(std::string_view name, StoreWaiters& waiters,
                        std::vector<StoreClient>& released) {
    const auto found = queues_.find(name);
    if (found == queues_.end()) {
        return;
    }
    Queue& queue = found->second;
    while (queue.told.size() < queue.elements.size()) {
        const std::optional<StoreClient> client = waiters.element_appeared(name, released);
        if (!client) {
            return;
        }
        queue.told.push_back(*client);
        told_.emplace(*client, name);
    }
}

std::vector<std::string> StoreQueues::retract(StoreClient client) {
    std::vector<std::string> names;
    if (told_.empty()) {
        return names;
    }
    auto [next, end] = told_.equal_range(client);
    while (next != end) {
        std::deque<StoreClient>& told = queues_.find(next->second)->second.told;
        told.erase(std::find(told.begin(), told.end(), client));
        names.push_back(std::move(next->second));
        next = told_.erase(next);
    }
    return names;
}

}  // namespace ddprun::rdzv
