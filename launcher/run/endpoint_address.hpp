#pragma once

#include <string>

namespace ddprun::launcher {

/// This machine's address on the interface that has the default route; empty without one.
[[nodiscard]] std::string default_route_address();

}  // namespace ddprun::launcher
