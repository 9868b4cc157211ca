#include "rendezvous/store/net/store_stalls.hpp"

namespace ddprun::rdzv {

std::optional<Instant> StoreStalls::next_deadline() const {
    if (entries_.empty()) {
        return std::nullopt;
    }
    return entries_.front().deadline;
}

std::vector<StoreClient> StoreStalls::overdue(Instant now) const {
    std::vector<StoreClient> clients;
    for (const Entry& entry : entries_) {
        if (entry.deadline > now) {
            break;
        }
        clients.push_back(entry.client);
    }
    return clients;
}

}  // namespace ddprun::rdzv
