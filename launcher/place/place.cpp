#include "launcher/place/place.hpp"

#include <array>

#include "launcher/place/schedulers.hpp"

namespace ddprun::launcher {

Result<std::optional<Place>> find_place(const Surroundings& surroundings) {
    for (const auto place_in : std::array{place_in_slurm}) {
        Result<std::optional<Place>> place = place_in(surroundings);
        if (!place || *place) {
            return place;
        }
    }
    return std::optional<Place>{};
}

}  // namespace ddprun::launcher
