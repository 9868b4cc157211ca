#pragma once

#include <array>
#include <string>
#include <vector>

namespace fake_gpu {

constexpr int kMostGpus = 16;
constexpr int kCudaVersion = 13000;  ///< 13.0, as CUDA's functions write it
constexpr const char* kGpuName = "Fake GPU";

using Uuid = std::array<unsigned char, 16>;

/// GPUs of one node differ in the last byte, those of different nodes in the first eight.
[[nodiscard]] Uuid uuid_of(int gpu);

/// Returns the UUID as NVIDIA's tools write it: GPU-01234567-89ab-cdef-0123-456789abcdef.
[[nodiscard]] std::string uuid_text(int gpu);

[[nodiscard]] unsigned pci_bus_of(int gpu);

/// The GPUs that this process sees, in CUDA's order: CUDA_VISIBLE_DEVICES has numbers or UUIDs, and
/// hides what follows the first entry that is neither.
[[nodiscard]] const std::vector<int>& visible_gpus();

}  // namespace fake_gpu
