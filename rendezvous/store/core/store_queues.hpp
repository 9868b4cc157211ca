#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/core/store_waiters.hpp"
#include "rendezvous/store/protocol/store_value.hpp"

namespace ddprun::rdzv {

/// The queues of a store. A waiting client that is told of an element does not have it yet: it
/// still has to ask. So the queues remember who was told, tell one client per element, and offer
/// the element to the next one when the told client does something else or goes away.
class StoreQueues {
public:
    void push(std::string_view name, StoreValue element);

    /// Moves the oldest element into `element` and returns how many there were before; 0 for none.
    std::size_t pop(std::string_view name, StoreValue& element);

    /// Elements of a queue; 0 also when it was never used.
    [[nodiscard]] std::size_t length(std::string_view name) const;
    [[nodiscard]] bool has_elements(std::string_view name) const {
        return queues_.find(name) != queues_.end();
    }
    /// Queues that have elements.
    [[nodiscard]] std::size_t size() const { return queues_.size(); }

    /// Tells waiting clients of the elements nobody was told of, oldest client first, and adds
    /// those who now wait for nothing more to `released`.
    void offer(std::string_view name, StoreWaiters& waiters, std::vector<StoreClient>& released);

    /// The client acts or is gone: forgets what it was told. Returns the queues concerned, which
    /// the caller offers again once the client's request is carried out.
    [[nodiscard]] std::vector<std::string> retract(StoreClient client);

private:
    struct Queue {
        std::deque<StoreValue> elements;  ///< at least one
        std::deque<StoreClient> told;     ///< oldest first; never more than there are elements
    };

    TextMap<Queue> queues_;
    std::multimap<StoreClient, std::string> told_;  ///< the same, by client
};

}  // namespace ddprun::rdzv
