#include "rendezvous/transport/listener.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/os/inherited_options.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::rdzv {

namespace {

// The kernel lowers it to net.core.somaxconn.
constexpr int kBacklog = 65535;

struct FreeAddresses {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const Endpoint& endpoint) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* list = nullptr;
    const std::string port = std::to_string(endpoint.port);
    const int failure = ::getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &list);
    if (failure != 0) {
        return Error{ErrorCode::Unreachable,
                     fmt::format("cannot listen on {}: the host cannot be resolved: {}",
                                 to_string(endpoint), ::gai_strerror(failure))};
    }
    return Addresses(list);
}

/// The errno of what failed, or none.
std::optional<int> bind_and_listen(const addrinfo& address, UniqueFd& fd) {
    fd.reset(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.is_open()) {
        return errno;
    }
    // A daemon that was just ended must not keep its port for the minute of TIME_WAIT.
    const int on = 1;
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        ::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
        ::listen(fd.get(), kBacklog) != 0) {
        return errno;
    }
    return std::nullopt;
}

std::optional<Error> read_address(Listener& listener) {
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    auto* const address = reinterpret_cast<sockaddr*>(&storage);
    if (::getsockname(listener.fd.get(), address, &length) != 0) {
        return system_error(errno, fmt::format("descriptor {} has no address", listener.fd.get()));
    }
    char text[INET6_ADDRSTRLEN] = "";
    if (storage.ss_family == AF_INET) {
        const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(storage);
        ::inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
        listener.port = ntohs(ipv4.sin_port);
    } else if (storage.ss_family == AF_INET6) {
        const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(storage);
        ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
        listener.port = ntohs(ipv6.sin6_port);
    } else {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("descriptor {} is no TCP socket", listener.fd.get())};
    }
    listener.host = text;
    return std::nullopt;
}

}  // namespace

Result<Listener> listen_on(const std::string& host, std::uint16_t port) {
    const Endpoint endpoint{.host = host, .port = port};
    const Result<Addresses> addresses = resolve(endpoint);
    if (!addresses) {
        return addresses.error();
    }
    Listener listener;
    const std::optional<int> failure = bind_and_listen(**addresses, listener.fd);
    if (failure) {
        return system_error(*failure, fmt::format("cannot listen on {}", to_string(endpoint)));
    }
    set_inherited_options(listener.fd.get());
    if (std::optional<Error> problem = read_address(listener)) {
        return *std::move(problem);
    }
    return listener;
}

Result<Listener> adopt_listener(UniqueFd fd) {
    Listener listener;
    listener.fd = std::move(fd);
    int is_listening = 0;
    socklen_t length = sizeof(is_listening);
    if (::getsockopt(listener.fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &length) != 0 ||
        is_listening == 0) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("descriptor {} is no listening socket", listener.fd.get())};
    }
    const int flags = ::fcntl(listener.fd.get(), F_GETFL);
    if (::fcntl(listener.fd.get(), F_SETFD, FD_CLOEXEC) != 0 ||
        ::fcntl(listener.fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
        return system_error(errno,
                            fmt::format("descriptor {} cannot be set up", listener.fd.get()));
    }
    set_inherited_options(listener.fd.get());
    if (std::optional<Error> problem = read_address(listener)) {
        return *std::move(problem);
    }
    return listener;
}

}  // namespace ddprun::rdzv
