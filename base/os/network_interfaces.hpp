#pragma once

#include <string>
#include <vector>

#include "base/network_interface.hpp"

namespace ddprun {

/// In the kernel's order; empty if it reports none.
[[nodiscard]] std::vector<NetworkInterface> network_interfaces();

/// The name of the one that is up and has `address`; empty: none has.
[[nodiscard]] std::string interface_with(const std::vector<NetworkInterface>& interfaces,
                                         const std::string& address);

}  // namespace ddprun
