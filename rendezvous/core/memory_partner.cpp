#include "rendezvous/core/memory_partner.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/planted_bug.hpp"

namespace ddprun::rdzv {

namespace {

/// The number of nodes of the largest rack, when `by_rack` has the nodes of a rack side by side.
std::size_t largest_rack(const std::vector<Place>& places,
                         const std::vector<std::size_t>& by_rack) {
    std::size_t largest = 1;
    std::size_t size = 0;
    const std::string* rack = nullptr;
    for (const std::size_t node : by_rack) {
        const std::string& key = places[node].topology_key;
        size = rack != nullptr && *rack == key && !key.empty() ? size + 1 : 1;
        rack = &key;
        largest = std::max(largest, size);
    }
    return largest;
}

}  // namespace

/// Nodes stand in a ring, rack by rack, and each node's partner stands as many places further as
/// the largest rack has nodes, L of n. A rack of g nodes is then left behind by all its nodes:
/// forwards because g <= L, and around the ring if L + g <= n. Only the largest rack can fail the
/// latter, and at most n - L of its nodes can have a partner elsewhere; with this shift that many
/// do.
std::vector<int> memory_partners(const std::vector<Place>& places) {
    if (places.size() < 2) {
        return {};
    }
    std::vector<std::size_t> by_rack(places.size());
    std::iota(by_rack.begin(), by_rack.end(), std::size_t{0});
    std::stable_sort(by_rack.begin(), by_rack.end(), [&](std::size_t left, std::size_t right) {
        return places[left].topology_key < places[right].topology_key;
    });
    const std::size_t largest = DDP_RULE(largest_rack(places, by_rack), PartnerOnSameRack, 1);
    const std::size_t shift = largest == places.size() ? 1 : largest;  // all on one rack
    std::vector<int> partners(places.size());
    for (std::size_t i = 0; i < by_rack.size(); ++i) {
        partners[by_rack[i]] = static_cast<int>(by_rack[(i + shift) % by_rack.size()]);
    }
    return partners;
}

}  // namespace ddprun::rdzv
