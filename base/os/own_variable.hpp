#pragma once

#include <cstdlib>
#include <string>

namespace ddprun {

/// Reads this process's environment; empty also if not set. Not while another thread sets one.
[[nodiscard]] inline std::string own_variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace ddprun
