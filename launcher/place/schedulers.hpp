#pragma once

#include <optional>

#include "base/result.hpp"
#include "launcher/place/place.hpp"
#include "launcher/surroundings/surroundings.hpp"

/// One function for each scheduler, in the order in which find_place() asks them. Each answers none
/// where its variables are not there.
namespace ddprun::launcher {

/// Open MPI starts one process on each of so many nodes; also from the script of a job.
inline constexpr char kOpenMpiOnePerNode[] = "mpirun -np {0} --map-by ppr:1:node --bind-to none";

[[nodiscard]] Result<std::optional<Place>> place_in_slurm(const Surroundings& surroundings);
[[nodiscard]] Result<std::optional<Place>> place_in_pbs(const Surroundings& surroundings);
[[nodiscard]] Result<std::optional<Place>> place_in_sge(const Surroundings& surroundings);
[[nodiscard]] Result<std::optional<Place>> place_in_lsf(const Surroundings& surroundings);
[[nodiscard]] Result<std::optional<Place>> place_in_aws_batch(const Surroundings& surroundings);
[[nodiscard]] Result<std::optional<Place>> place_in_sagemaker(const Surroundings& surroundings);
[[nodiscard]] Result<std::optional<Place>> place_in_kubernetes(const Surroundings& surroundings);

/// mpirun starts processes in a scheduler's job, or without any: `place` is changed to the
/// place that mpirun gives. It stays as it is if mpirun has not started this process.
[[nodiscard]] Result<void> take_mpirun(const Surroundings& surroundings,
                                       std::optional<Place>& place);

}  // namespace ddprun::launcher
