#include "base/os/inherited_options.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <string_view>

namespace ddprun {

namespace {

bool is_loopback(const sockaddr_storage& address) {
    if (address.ss_family == AF_INET) {
        sockaddr_in v4{};
        std::memcpy(&v4, &address, sizeof v4);
        return (ntohl(v4.sin_addr.s_addr) >> IN_CLASSA_NSHIFT) == IN_LOOPBACKNET;
    }
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof v6);
    return address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

}  // namespace

void set_inherited_options(int listener) {
    const int on = 1;
    (void)::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getsockname(listener, static_cast<sockaddr*>(static_cast<void*>(&address)), &size) == 0 &&
        is_loopback(address)) {
        // Within a machine nothing is congested. Those that measure the path, or pace what is sent,
        // do so for every reply.
        constexpr std::string_view kCheapest = "reno";  // Every kernel has it.
        (void)::setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, kCheapest.data(),
                           kCheapest.size());
    }
}

}  // namespace ddprun
