#pragma once

#include <list>
#include <optional>
#include <vector>

#include "base/instant.hpp"
#include "rendezvous/store/core/store_waiters.hpp"

namespace ddprun::rdzv {

/// Who has how long to go on: clients that have not said VALIDATE, have sent a part of a request or
/// leave replies unread. All have the same time, so the list is in the order of the deadlines, and
/// nothing here takes time in the number of clients.
class StoreStalls {
public:
    struct Entry {
        StoreClient client;
        Instant deadline;
    };
    using Place = std::list<Entry>::iterator;

    explicit StoreStalls(Milliseconds patience) : patience_(patience) {}

    [[nodiscard]] Place begin(StoreClient client, Instant now) {
        return entries_.insert(entries_.end(), {client, now + patience_});
    }
    void end(Place place) { entries_.erase(place); }

    [[nodiscard]] std::optional<Instant> next_deadline() const;
    /// Whose time is over; they stay in the list until end().
    [[nodiscard]] std::vector<StoreClient> overdue(Instant now) const;
    [[nodiscard]] Milliseconds patience() const { return patience_; }

private:
    Milliseconds patience_;
    std::list<Entry> entries_;
};

}  // namespace ddprun::rdzv
