#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/wire/messages.hpp"

/// How many nodes a generation may have: any number from the least to the most, multiples of a unit
/// (--node-unit), or sizes that are listed (--nnodes 2,4,8). Pure.
namespace ddprun::rdzv {

/// Not every number from the least to the most will do.
[[nodiscard]] bool has_sizes(const JobSettings& settings);

/// The bounds fit each other, the unit and the list; without it the other functions mean nothing.
[[nodiscard]] bool are_sizes_sound(const JobSettings& settings);

/// The largest size of at most `nodes`; 0: they are too few.
[[nodiscard]] std::size_t largest_size(const JobSettings& settings, std::size_t nodes);

/// A generation may have so many nodes.
[[nodiscard]] bool is_size(const JobSettings& settings, int nodes);

/// The smallest size above `nodes`; none: that is the largest one, or above it.
[[nodiscard]] std::optional<std::size_t> next_size(const JobSettings& settings, std::size_t nodes);

/// As the flags say it, without the first one's name: "4", "2:4", "2,4,8", "2:8 --node-unit 2".
[[nodiscard]] std::string nnodes_of(const JobSettings& settings);

}  // namespace ddprun::rdzv
