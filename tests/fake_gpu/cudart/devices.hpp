#pragma once

namespace fake_gpu {

/// The current device of this thread, as CUDA numbers the visible GPUs.
[[nodiscard]] int current_device();
[[nodiscard]] bool is_visible(int device);

/// The machine's number of a visible device.
[[nodiscard]] int gpu_of(int device);

}  // namespace fake_gpu
