#pragma once

namespace fake_gpu {

/// Each byte of poisoned memory. A floating-point number of such bytes is a NaN.
constexpr int kPoison = 0xff;

}  // namespace fake_gpu
