#pragma once

#include <string>
#include <vector>

namespace ddprun {

/// A network interface of this machine.
struct NetworkInterface {
    std::string name;  ///< without the label of an address: eth0, not eth0:1
    bool is_up = false;
    bool is_loopback = false;
    std::vector<std::string> addresses;  ///< of the Internet, numeric; a scope follows "%"

    bool operator==(const NetworkInterface&) const = default;
};

}  // namespace ddprun
