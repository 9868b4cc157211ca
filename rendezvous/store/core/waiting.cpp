#include "rendezvous/store/core/waiting.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace {

/// Memory of the allocator and the maps for a name, besides its text, and for a waiter.
constexpr std::uint64_t kNameBytes = 192;
constexpr std::uint64_t kWaiterBytes = 192;

}  // namespace

StoreWaiters::Waiter& StoreWaiters::add_waiter(StoreClient client) {
    const auto [found, is_new] = waiters_.try_emplace(client);
    DDP_CHECK(is_new, client.value());
    found->second.client = client;
    return found->second;
}

void StoreWaiters::erase_waiter(const Waiter& waiter) {
    bytes_ -= bytes_of(waiter);
    waiters_.erase(waiter.client);
}

std::uint64_t StoreWaiters::bytes_of(const Waiter& waiter) {
    return kWaiterBytes + waiter.places.capacity() * sizeof(Place);
}

StoreWaiters::Names::value_type& StoreWaiters::name_of(std::string_view text) {
    auto found = names_.find(text);
    if (found == names_.end()) {
        found = names_.try_emplace(std::string(text)).first;
        bytes_ += kNameBytes + text.size();
    }
    return *found;
}

Result<void> StoreWaiters::wait_for_names(StoreClient client,
                                          const std::vector<std::string_view>& names) {
    DDP_CHECK(!names.empty(), client.value());
    std::uint64_t wanted = kWaiterBytes;
    for (const std::string_view text : names) {
        wanted += sizeof(Place) + kNameBytes + text.size();
    }
    if (wanted > limits_->store_wait_bytes_max) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("WAIT for {} names takes {} bytes, more than {}", names.size(),
                                 wanted, limits_->store_wait_bytes_max)};
    }
    Waiter& waiter = add_waiter(client);
    waiter.places.reserve(names.size());
    bytes_ += bytes_of(waiter);
    for (const std::string_view text : names) {
        Names::value_type& name = name_of(text);
        Place* const newest = name.second.newest;
        if (newest != nullptr && newest->waiter == &waiter) {
            continue;  // A name given twice is one name.
        }
        Place& place = waiter.places.emplace_back(
            Place{.name = &name, .waiter = &waiter, .older = newest, .newer = nullptr});
        (newest != nullptr ? newest->newer : name.second.oldest) = &place;
        name.second.newest = &place;
    }
    waiter.missing = waiter.places.size();
    if (bytes_ > limits_->store_waits_bytes_max) {
        forget(client);
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("WAIT for {} names, and the names that all clients wait for take "
                                 "more than {} bytes",
                                 names.size(), limits_->store_waits_bytes_max)};
    }
    return {};
}

Result<void> StoreWaiters::check_room(std::string_view name) const {
    if (bytes_ + kWaiterBytes + kNameBytes + name.size() > limits_->store_waits_bytes_max) {
        return Error{
            ErrorCode::LimitExceeded,
            fmt::format("BARRIER, and the names that all clients wait for take {} bytes of "
                        "at most {}",
                        bytes_, limits_->store_waits_bytes_max)};
    }
    return {};
}

void StoreWaiters::wait_for_count(StoreClient client, std::string_view name, std::int64_t number) {
    Waiter& waiter = add_waiter(client);
    bytes_ += bytes_of(waiter);
    waiter.counter = &name_of(name);
    waiter.count = waiter.counter->second.counts.emplace(number, &waiter);
}

void StoreWaiters::forget(StoreClient client) {
    const auto found = waiters_.find(client);
    if (found == waiters_.end()) {
        return;
    }
    Waiter& waiter = found->second;
    for (Place& place : waiter.places) {
        if (place.name != nullptr) {
            unlink(place);
            erase_if_unused(*place.name);
        }
    }
    if (waiter.counter != nullptr) {
        waiter.counter->second.counts.erase(waiter.count);
        erase_if_unused(*waiter.counter);
    }
    erase_waiter(waiter);
}

void StoreWaiters::key_appeared(std::string_view name, std::vector<StoreClient>& released) {
    const auto found = names_.find(name);
    if (found == names_.end()) {
        return;
    }
    Place* place = std::exchange(found->second.oldest, nullptr);
    found->second.newest = nullptr;
    while (place != nullptr) {
        satisfy(*std::exchange(place, place->newer), released);
    }
    erase_if_unused(*found);
}

std::optional<StoreClient> StoreWaiters::element_appeared(std::string_view name,
                                                          std::vector<StoreClient>& released) {
    const auto found = names_.find(name);
    if (found == names_.end() || found->second.oldest == nullptr) {
        return std::nullopt;
    }
    Place& oldest = *found->second.oldest;
    const StoreClient told = oldest.waiter->client;
    unlink(oldest);
    satisfy(oldest, released);
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
        erase_waiter(*reached->second);
    }
    counts.erase(counts.begin(), end);
    erase_if_unused(*found);
}

StoreWaits StoreWaiters::waits() const {
    StoreWaits told;
    told.waiting = waiters_.size();
    for (const auto& [text, name] : names_) {
        std::size_t count = name.counts.size();
        for (const Place* place = name.oldest; place != nullptr; place = place->newer) {
            ++count;
        }
        if (count > told.for_key || (count == told.for_key && text < told.key)) {
            told.key = text;
            told.for_key = count;
        }
    }
    return told;
}

/// Ticks one place off, which is in its name's list no more. A waiter with nothing missing has no
/// places in lists left, so it can go.
void StoreWaiters::satisfy(Place& place, std::vector<StoreClient>& released) {
    Waiter& waiter = *place.waiter;
    place.name = nullptr;
    --waiter.missing;
    if (waiter.missing == 0) {
        released.push_back(waiter.client);
        erase_waiter(waiter);
    }
}

/// Out of the list of its name.
void StoreWaiters::unlink(Place& place) {
    Name& name = place.name->second;
    (place.older != nullptr ? place.older->newer : name.oldest) = place.newer;
    (place.newer != nullptr ? place.newer->older : name.newest) = place.older;
}

void StoreWaiters::erase_if_unused(const Names::value_type& name) {
    if (name.second.oldest == nullptr && name.second.counts.empty()) {
        bytes_ -= kNameBytes + name.first.size();
        names_.erase(names_.find(name.first));
    }
}

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
    // An element that one client was told of has been taken by another one: that news is void.
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
