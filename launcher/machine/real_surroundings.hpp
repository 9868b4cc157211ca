#pragma once

#include <memory>

#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// This process's environment, file system and machine. Not for use while another thread changes
/// the environment.
[[nodiscard]] std::unique_ptr<const Surroundings> real_surroundings();

}  // namespace ddprun::launcher
