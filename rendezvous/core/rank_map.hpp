#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/tagged.hpp"
#include "rendezvous/wire/run_record.hpp"

namespace ddprun::rdzv {

/// A node that is to get a place, and what decides which.
struct Candidate : Place {
    std::optional<int> node_rank;
};

[[nodiscard]] Place place_of(const Join& join);

/// True if `left` comes before `right` when digits are read as numbers: gpu9 before gpu10.
[[nodiscard]] bool is_naturally_before(const std::string& left, const std::string& right);

/// Orders `chosen` into group ranks. With no `previous` map: by explicit node rank, topology key,
/// natural host-name order, node id. With one, every survivor keeps its place, and newcomers in
/// that same order fill the holes: first those with as many slots as they have, so that no other
/// rank moves, and of these first one that is near the hole (same topology key); then any;
/// newcomers that remain come last, holes that remain are closed up in order.
[[nodiscard]] std::vector<Place> order_places(const std::vector<Place>& previous,
                                              std::vector<Candidate> chosen);

}  // namespace ddprun::rdzv
