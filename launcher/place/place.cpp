#include "launcher/place/place.hpp"

#include <array>

#include "launcher/place/schedulers.hpp"

namespace ddprun::launcher {

std::string start_command(const Place& place) {
    return place.start_line + " ddprun" + place.start_flags;
}

Result<std::optional<Place>> find_place(const Surroundings& surroundings) {
    constexpr std::array kSchedulers = {place_in_slurm,     place_in_pbs,       place_in_sge,
                                        place_in_lsf,       place_in_aws_batch, place_in_sagemaker,
                                        place_in_kubernetes};
    std::optional<Place> found;
    for (const auto place_in : kSchedulers) {
        Result<std::optional<Place>> place = place_in(surroundings);
        if (!place) {
            return place;
        }
        if (*place) {
            found = *std::move(place);
            break;
        }
    }
    if (const Result<void> taken = take_mpirun(surroundings, found); !taken) {
        return taken.error();
    }
    return found;
}

}  // namespace ddprun::launcher
