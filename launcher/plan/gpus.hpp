#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/surroundings/gpu.hpp"
#include "launcher/surroundings/surroundings.hpp"

/// Which GPUs the workers of this node will see, without CUDA or ROCm.
namespace ddprun::launcher {

/// A device, as a program with this environment counts it.
struct VisibleGpu {
    std::string name;                   ///< its entry in the variable, or its number
    std::optional<std::size_t> number;  ///< its place among the GPUs that are present, where known

    bool operator==(const VisibleGpu&) const = default;
};

/// The GPUs of `present` that CUDA shows under this CUDA_VISIBLE_DEVICES: numbers, or unique
/// beginnings of the names GPU-… and MIG-…, up to the first entry that is none; nothing if one is
/// named twice. If nothing is known of the GPUs (`present` is none), entries are believed.
[[nodiscard]] std::vector<VisibleGpu> visible_gpus(
    const std::optional<std::vector<Gpu>>& present,
    const std::optional<std::string>& visible_devices);

/// The GPUs that programs which are started here will see, as far as it is known.
struct GpuSight {
    std::vector<VisibleGpu> visible;
    std::vector<Gpu> present;  ///< what the numbers of `visible` count
    bool is_evident = false;   ///< a driver is loaded; else only a variable says that GPUs exist
};

/// Present are those that NVIDIA's driver lists; without it those that have device files; else
/// those of ROCm's kernel driver.
[[nodiscard]] GpuSight see_gpus(const Surroundings& surroundings);

/// The number of them; none where there are none. Only where `is_asked` for by name a variable
/// alone is believed.
[[nodiscard]] std::optional<int> usable_gpus(const Surroundings& surroundings, bool is_asked);

/// Whether programs that are started here may see GPUs of NVIDIA's driver. Without asking it: that
/// takes longer than the start of a job.
[[nodiscard]] bool may_see_nvidia_gpus(const Surroundings& surroundings);

/// The memory in use that no process for which `is_living` holds has; none if that is unknown.
[[nodiscard]] std::optional<std::uint64_t> unheld_memory(
    const GpuMemoryUse& use, const std::function<bool(int pid)>& is_living);

/// The NUMA node of each visible GPU; 0 if the kernel gives none, as in torchrun.
[[nodiscard]] std::vector<int> nodes_of(const GpuSight& gpus, const Surroundings& surroundings);

}  // namespace ddprun::launcher
