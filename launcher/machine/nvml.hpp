#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "launcher/surroundings/gpu.hpp"

namespace ddprun::launcher {

/// The GPUs that NVIDIA's driver lists, in its order, which is that of CUDA with
/// CUDA_DEVICE_ORDER=PCI_BUS_ID; none where its library is missing or does not work.
[[nodiscard]] std::optional<std::vector<Gpu>> gpus_of_nvml();

/// How they are, in the same order.
[[nodiscard]] std::optional<std::vector<GpuHealth>> gpu_health_of_nvml();

/// How they are used, in the same order: by processes, as far as the driver remembers, since
/// `since` microseconds of the wall clock. The driver may never answer.
[[nodiscard]] std::optional<std::vector<GpuUse>> gpu_use_of_nvml(std::uint64_t since);

/// How much of their memory is in use, in the same order. If `is_suspect(number, bytes)`, the
/// driver is asked which processes hold it, which takes longer.
[[nodiscard]] std::optional<std::vector<GpuMemoryUse>> gpu_memory_of_nvml(
    const std::function<bool(unsigned number, std::uint64_t bytes)>& is_suspect);

/// The work that the GPUs do, in the same order.
[[nodiscard]] std::optional<std::vector<GpuWork>> gpu_work_of_nvml();

/// As long as this lives, the driver's library stays started, and answers the above at once.
[[nodiscard]] std::shared_ptr<const void> keep_nvml_started();

}  // namespace ddprun::launcher
