#include "rendezvous/server/half_open.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace ddprun::rdzv {

std::size_t HalfOpen::allowance(bool is_expected) const {
    return is_expected ? expected_ : 0;
}

HalfOpen::Room HalfOpen::oldest_of(Instant now, const Source& source) const {
    const auto& [id, since] = *source.since.begin();
    if (now - since >= limits_.half_open_grace) {
        return Evict{id};
    }
    return Full{since + limits_.half_open_grace};
}

HalfOpen::Room HalfOpen::room(Instant now) const {
    if (size() < limits_.half_open_max + expected_) {
        return Free{};
    }
    return *room_without_descriptors(now);
}

std::optional<HalfOpen::Room> HalfOpen::room_without_descriptors(Instant now) const {
    const auto excess = [this](const auto& entry) {
        return static_cast<std::ptrdiff_t>(entry.second.since.size()) -
               static_cast<std::ptrdiff_t>(allowance(entry.second.is_expected));
    };
    const auto most = std::max_element(
        sources_.begin(), sources_.end(),
        [&](const auto& left, const auto& right) { return excess(left) < excess(right); });
    if (most == sources_.end()) {
        return std::nullopt;
    }
    return oldest_of(now, most->second);
}

HalfOpen::Room HalfOpen::room_of(Instant now, const std::string& source, bool is_expected) const {
    const auto found = sources_.find(source);
    if (found == sources_.end() ||
        found->second.since.size() < limits_.half_open_per_source_max + allowance(is_expected)) {
        return Free{};
    }
    return oldest_of(now, found->second);
}

void HalfOpen::enter(Instant now, ConnectionId id, const std::string& source, bool is_expected) {
    Source& entered = sources_[source];
    DDP_CHECK(entered.since.empty() || entered.since.rbegin()->first < id, id.value());
    entered.since.emplace_hint(entered.since.end(), id, now);
    entered.is_expected = is_expected;
    source_of_.emplace_hint(source_of_.end(), id, source);
}

void HalfOpen::leave(ConnectionId id) {
    const auto found = source_of_.find(id);
    if (found == source_of_.end()) {
        return;
    }
    const auto source = sources_.find(found->second);
    source->second.since.erase(id);
    if (source->second.since.empty()) {
        sources_.erase(source);
    }
    source_of_.erase(found);
}

}  // namespace ddprun::rdzv
