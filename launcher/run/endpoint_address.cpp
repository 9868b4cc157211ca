#include "launcher/run/endpoint_address.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"
#include "launcher/run/node_identity.hpp"

namespace ddprun::launcher {

namespace {

std::string numeric(const sockaddr* address, socklen_t length) {
    std::array<char, NI_MAXHOST> text{};
    return getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0
               ? text.data()
               : "";
}

bool is_loopback(const std::string& host) {
    return host.starts_with("127.") || host == "::1";
}

/// The local address that packets to the rest of the world would carry. Connecting a datagram
/// socket sends nothing. Empty without a default route.
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
    return numeric(from, length);
}

Result<std::vector<std::string>> look_up(const std::string& host) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failure = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    if (failure != 0) {
        return Error{ErrorCode::Unreachable,
                     fmt::format("--rdzv-endpoint {}: cannot find that host: {}; give a name that "
                                 "every node can resolve, or an address",
                                 host, gai_strerror(failure))};
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
    std::vector<std::string> addresses;
    for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
        addresses.push_back(numeric(entry->ai_addr, entry->ai_addrlen));
    }
    return addresses;
}

}  // namespace

Result<EndpointAddress> find_endpoint(const rdzv::Endpoint& endpoint) {
    Result<std::vector<std::string>> addresses = look_up(endpoint.host);
    if (!addresses) {
        return addresses.error();
    }
    EndpointAddress found{.endpoint = {addresses->front(), endpoint.port}};
    const bool is_own_name_on_loopback =
        std::all_of(addresses->begin(), addresses->end(),
                    [](const std::string& address) { return address == "127.0.1.1"; });
    if (is_own_name_on_loopback && endpoint.host != "127.0.1.1") {
        const std::string outside = default_route_address();
        if (!outside.empty()) {
            found.endpoint.host = outside;
            found.note = fmt::format(
                "{} means 127.0.1.1 here, which no other machine can reach; "
                "using {} instead",
                endpoint.host, outside);
        }
    }
    const std::vector<std::string> ours = interface_addresses();
    found.is_loopback = is_loopback(found.endpoint.host);
    found.is_ours =
        found.is_loopback || std::find(ours.begin(), ours.end(), found.endpoint.host) != ours.end();
    return found;
}

}  // namespace ddprun::launcher
