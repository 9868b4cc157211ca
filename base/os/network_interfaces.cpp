#include "base/os/network_interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/os/numeric_address.hpp"

namespace ddprun {

std::vector<NetworkInterface> network_interfaces() {
    ifaddrs* raw = nullptr;
    if (::getifaddrs(&raw) != 0) {
        return {};
    }
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list{raw, ::freeifaddrs};
    std::vector<NetworkInterface> found;
    for (const ifaddrs* it = raw; it != nullptr; it = it->ifa_next) {
        const std::string labelled = it->ifa_name;
        const std::string name = labelled.substr(0, labelled.find(':'));
        auto one = std::find_if(found.begin(), found.end(),
                                [&](const NetworkInterface& other) { return other.name == name; });
        if (one == found.end()) {
            one = found.insert(
                found.end(), NetworkInterface{.name = name,
                                              .is_up = (it->ifa_flags & IFF_UP) != 0,
                                              .is_loopback = (it->ifa_flags & IFF_LOOPBACK) != 0});
        }
        if (std::string address = numeric_address(it->ifa_addr); !address.empty()) {
            one->addresses.push_back(std::move(address));
        }
    }
    return found;
}

std::string interface_with(const std::vector<NetworkInterface>& interfaces,
                           const std::string& address) {
    for (const NetworkInterface& one : interfaces) {
        if (one.is_up &&
            std::find(one.addresses.begin(), one.addresses.end(), address) != one.addresses.end()) {
            return one.name;
        }
    }
    return {};
}

}  // namespace ddprun
