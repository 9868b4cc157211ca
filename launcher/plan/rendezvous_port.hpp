#pragma once

#include <cstdint>

namespace ddprun::launcher {

/// The port at which nodes meet unless --rdzv-endpoint says otherwise.
inline constexpr std::uint16_t kRendezvousPort = 29400;

}  // namespace ddprun::launcher
