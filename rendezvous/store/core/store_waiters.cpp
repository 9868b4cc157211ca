#include "rendezvous/store/core/store_waiters.hpp"

#include "base/check.hpp"

namespace ddprun::rdzv {

StoreWaiters::Waiter& StoreWaiters::add_waiter(StoreClient client) {
    const auto [found, is_new] = waiters_.try_emplace(client);
    DDP_CHECK(is_new, client.value());
    found->second.client = client;
    return found->second;
}

void StoreWaiters::wait_for_names(StoreClient client, const std::vector<std::string_view>& names) {
    DDP_CHECK(!names.empty(), client.value());
    Waiter& waiter = add_waiter(client);
    waiter.places.reserve(names.size());
    for (std::string_view text : names) {
        auto found = names_.find(text);
        if (found == names_.end()) {
            found = names_.try_emplace(std::string(text)).first;
        }
        std::list<NameEntry>& entries = found->second.entries;
        if (!entries.empty() && entries.back().waiter == &waiter) {
            continue;  // A name given twice is one name.
        }
        entries.push_back({&waiter, waiter.places.size()});
        waiter.places.push_back({&*found, std::prev(entries.end())});
    }
    waiter.missing = waiter.places.size();
}

void StoreWaiters::wait_for_count(StoreClient client, std::string_view name, std::int64_t number) {
    Waiter& waiter = add_waiter(client);
    auto found = names_.find(name);
    if (found == names_.end()) {
        found = names_.try_emplace(std::string(name)).first;
    }
    waiter.counter = &*found;
    waiter.count = found->second.counts.emplace(number, &waiter);
}

void StoreWaiters::forget(StoreClient client) {
    const auto found = waiters_.find(client);
    if (found == waiters_.end()) {
        return;
    }
    Waiter& waiter = found->second;
    for (const Place& place : waiter.places) {
        if (place.name != nullptr) {
            place.name->second.entries.erase(place.entry);
            erase_if_unused(*place.name);
        }
    }
    if (waiter.counter != nullptr) {
        waiter.counter->second.counts.erase(waiter.count);
        erase_if_unused(*waiter.counter);
    }
    waiters_.erase(found);
}

void StoreWaiters::key_appeared(std::string_view name, std::vector<StoreClient>& released) {
    const auto found = names_.find(name);
    if (found == names_.end()) {
        return;
    }
    for (const NameEntry& entry : found->second.entries) {
        satisfy(entry, released);
    }
    found->second.entries.clear();
    erase_if_unused(*found);
}

std::optional<StoreClient> StoreWaiters::element_appeared(std::string_view name,
                                                          std::vector<StoreClient>& released) {
    const auto found = names_.find(name);
    if (found == names_.end() || found->second.entries.empty()) {
        return std::nullopt;
    }
    const StoreClient told = found->second.entries.front().waiter->client;
    satisfy(found->second.entries.front(), released);
    found->second.entries.pop_front();
    erase_if_unused(*found);
    return told;
}

bool StoreWaiters::has_count_waiters(std::string_view name) const {
    const auto found = names_.find(name);
    return found != names_.end() && !found->second.counts.empty();
}

void StoreWaiters::count_changed(std::string_view name, std::int64_t count,
                                 std::vector<StoreClient>& released) {
    const auto found = names_.find(name);
    if (found == names_.end()) {
        return;
    }
    std::multimap<std::int64_t, Waiter*>& counts = found->second.counts;
    const auto end = counts.upper_bound(count);
    for (auto reached = counts.begin(); reached != end; ++reached) {
        released.push_back(reached->second->client);
        waiters_.erase(reached->second->client);
    }
    counts.erase(counts.begin(), end);
    erase_if_unused(*found);
}

/// Ticks one place off; the caller removes the entry from its list. A waiter with nothing missing
/// has no places left, so it can go.
void StoreWaiters::satisfy(const NameEntry& entry, std::vector<StoreClient>& released) {
    Waiter& waiter = *entry.waiter;
    waiter.places[entry.place].name = nullptr;
    --waiter.missing;
    if (waiter.missing == 0) {
        released.push_back(waiter.client);
        waiters_.erase(waiter.client);
    }
}

void StoreWaiters::erase_if_unused(const Names::value_type& name) {
    if (name.second.entries.empty() && name.second.counts.empty()) {
        names_.erase(names_.find(name.first));
    }
}

}  // namespace ddprun::rdzv
