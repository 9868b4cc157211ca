#include "launcher/run/endpoint_address.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "base/os/numeric_address.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::launcher {

// The local address that packets to the rest of the world would carry. Connecting a datagram socket
// sends nothing.
std::string default_route_address() {
    const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in elsewhere{};
    elsewhere.sin_family = AF_INET;
    elsewhere.sin_port = htons(9);
    elsewhere.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1: documentation, never assigned
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    const auto* to = reinterpret_cast<const sockaddr*>(&elsewhere);
    auto* from = reinterpret_cast<sockaddr*>(&own);
    if (!fd.is_open() || connect(fd.get(), to, sizeof elsewhere) != 0 ||
        getsockname(fd.get(), from, &length) != 0) {
        return {};
    }
    return numeric_address(from);
}

}  // namespace ddprun::launcher
