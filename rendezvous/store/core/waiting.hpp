#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/store/core/store_waits.hpp"
#include "rendezvous/store/protocol/replies.hpp"
#include "rendezvous/store/protocol/value.hpp"

namespace ddprun::rdzv {

/// Clients and the names they wait for. A client waits for at most one thing: a set of names, each
/// counted once when it first appears, or a counter that reaches a number. Leaving costs time in
/// the number of the client's own names only, so ten thousand clients giving up at once are cheap.
class StoreWaiters {
public:
    /// `limits` outlives the waiters.
    explicit StoreWaiters(const Limits& limits) : limits_(&limits) {}
    StoreWaiters(const StoreWaiters&) = delete;
    StoreWaiters& operator=(const StoreWaiters&) = delete;

    /// `client`, which waits for nothing, waits until each of `names` (at least one) has appeared.
    /// Failure: that takes more memory than one client, or all of them, may use; it does not wait.
    [[nodiscard]] Result<void> wait_for_names(StoreClient client,
                                              const std::vector<std::string_view>& names);

    /// Whether there is room for one more to wait for the counter `name`.
    [[nodiscard]] Result<void> check_room(std::string_view name) const;

    /// `client`, which waits for nothing, waits until the counter `name` is at least `number`.
    /// check_room() has succeeded.
    void wait_for_count(StoreClient client, std::string_view name, std::int64_t number);

    /// `client` waits no longer; nothing happens when it did not.
    void forget(StoreClient client);

    /// The key `name` has a value: adds to `released` those who now wait for nothing more.
    void key_appeared(std::string_view name, std::vector<StoreClient>& released);

    /// An element of the queue `name` is free: notifies the client that waits longest, and adds it
    /// to `released` if it waits for nothing more. Returns nothing if no client waits for the name.
    std::optional<StoreClient> element_appeared(std::string_view name,
                                                std::vector<StoreClient>& released);

    [[nodiscard]] bool has_count_waiters(std::string_view name) const;

    /// The counter `name` is `count` now: adds to `released` those who waited for no more.
    void count_changed(std::string_view name, std::int64_t count,
                       std::vector<StoreClient>& released);

    [[nodiscard]] std::size_t size() const { return waiters_.size(); }
    /// Looks at each who waits and at all that is waited for.
    [[nodiscard]] StoreWaits waits() const;
    /// Memory that all of them take; a name that many wait for is counted once.
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

private:
    struct Waiter;
    struct Place;
    struct Name {
        Place* oldest = nullptr;  ///< of those who wait for it to appear
        Place* newest = nullptr;
        std::multimap<std::int64_t, Waiter*> counts;  ///< by the number waited for
    };
    /// Elements of an unordered_map stay where they are, so pointers to them are kept.
    using Names = TextMap<Name>;
    /// One waiter's place in the list of one name.
    struct Place {
        Names::value_type* name = nullptr;  ///< null once the name has appeared
        Waiter* waiter = nullptr;
        Place* older = nullptr;
        Place* newer = nullptr;
    };
    struct Waiter {
        StoreClient client;
        std::size_t missing = 0;    ///< places whose name has not appeared
        std::vector<Place> places;  ///< they stay where they are, too
        Names::value_type* counter = nullptr;
        std::multimap<std::int64_t, Waiter*>::iterator count;
    };
    struct ClientHash {
        std::size_t operator()(StoreClient client) const { return client.value(); }
    };

    [[nodiscard]] static std::uint64_t bytes_of(const Waiter& waiter);
    Waiter& add_waiter(StoreClient client);
    void erase_waiter(const Waiter& waiter);
    Names::value_type& name_of(std::string_view text);
    void satisfy(Place& place, std::vector<StoreClient>& released);
    void unlink(Place& place);
    void erase_if_unused(const Names::value_type& name);

    const Limits* limits_;
    Names names_;
    std::unordered_map<StoreClient, Waiter, ClientHash> waiters_;
    std::uint64_t bytes_ = 0;
};

/// The queues of a store. A waiting client that is told of an element does not have it yet: it
/// still has to ask. So the queues remember which client was told, notify one client per element,
/// and offer it to the next one when the told client does something else or goes away.
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

    /// Notifies waiting clients of the elements that none was told of, oldest client first, and
    /// adds those who now wait for nothing more to `released`.
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
