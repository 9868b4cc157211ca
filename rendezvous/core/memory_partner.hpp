#pragma once

#include <vector>

#include "rendezvous/wire/run_record.hpp"

namespace ddprun::rdzv {

/// The memory partner of each place: the position in `places` of the node that holds the second
/// copy of what the place's node keeps in memory. Empty for fewer than two places.
///
/// No node is its own partner, and each node is the partner of exactly one. As few nodes as
/// possible have a partner with their own topology key: `largest rack - all others`, at least 0. A
/// node without a topology key counts as a rack of its own. The result depends on the topology keys
/// and their order alone, so a replacement on the same rack moves no partner. Takes O(n log n).
[[nodiscard]] std::vector<int> memory_partners(const std::vector<Place>& places);

}  // namespace ddprun::rdzv
