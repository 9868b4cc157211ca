#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/tagged.hpp"

namespace ddprun::rdzv {

struct Run;

/// How long a generation that this process has not seen begin may have run.
inline constexpr std::chrono::hours kLongAgo{24 * 365};

/// No job comes to so many generations: a larger number in a join is not believed.
[[nodiscard]] inline bool is_believable(Generation generation) {
    return generation.value() < std::uint64_t{1} << 48;
}

/// Who may use the current generation's store: the members' interfaces while they go into a
/// message, else what they were reached at. Empty: everybody.
[[nodiscard]] std::vector<std::string> admitted_addresses(const Run& run, const Limits& limits);
/// Fills run.rows from the rank map; info of members that are not here is taken from it.
void write_rows(Run& run);
/// The rank of one of the member's workers.
[[nodiscard]] Rank rank_of(const Run& run, const NodeId& id, LocalRank local_rank);
/// The store of the current generation goes with that node; the rendezvous's does not.
[[nodiscard]] bool takes_store_along(const Run& run, const NodeId& id);

}  // namespace ddprun::rdzv
