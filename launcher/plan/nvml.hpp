#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "launcher/plan/gpu.hpp"

namespace ddprun::launcher {

/// The GPUs that NVIDIA's driver tells, in its order, which is that of CUDA with
/// CUDA_DEVICE_ORDER=PCI_BUS_ID; none where its library is missing or does not work.
[[nodiscard]] std::optional<std::vector<Gpu>> gpus_of_nvml();

/// How they are, in the same order.
[[nodiscard]] std::optional<std::vector<GpuHealth>> gpu_health_of_nvml();

/// How they are used, in the same order: by processes, as far as the driver remembers, since
/// `since` microseconds of the wall clock. The driver may never answer.
[[nodiscard]] std::optional<std::vector<GpuUse>> gpu_use_of_nvml(std::uint64_t since);

}  // namespace ddprun::launcher
