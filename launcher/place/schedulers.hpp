#pragma once

#include <optional>

#include "base/result.hpp"
#include "launcher/place/place.hpp"
#include "launcher/surroundings/surroundings.hpp"

/// One function for each scheduler, in the order in which find_place() asks them. Each answers none
/// where its variables are not there.
namespace ddprun::launcher {

[[nodiscard]] Result<std::optional<Place>> place_in_slurm(const Surroundings& surroundings);

}  // namespace ddprun::launcher
