#include "base/os/numeric_address.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>

namespace ddprun {

std::string numeric_address(const sockaddr* address) {
    if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) {
        return {};
    }
    std::array<char, NI_MAXHOST> text{};
    const socklen_t size =
        address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const int error =
        ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    return error == 0 ? text.data() : "";
}

std::vector<std::string> addresses_of(const std::string& host) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* raw = nullptr;
    if (::getaddrinfo(host.c_str(), nullptr, &wanted, &raw) != 0) {
        return {};
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list{raw, ::freeaddrinfo};
    std::vector<std::string> found;
    for (const addrinfo* it = raw; it != nullptr; it = it->ai_next) {
        if (std::string address = numeric_address(it->ai_addr); !address.empty()) {
            found.push_back(std::move(address));
        }
    }
    return found;
}

}  // namespace ddprun
