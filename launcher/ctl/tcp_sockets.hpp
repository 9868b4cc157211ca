#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

/// A TCP socket of this machine, as the kernel reports it to every process.
struct TcpSocket {
    rdzv::Endpoint local;   ///< an IPv4 address inside IPv6 as IPv4's
    rdzv::Endpoint remote;  ///< port 0: it listens
    uid_t owner = 0;
    std::string inode;
};

/// One line of /proc/net/tcp or tcp6 each; others are left out. Pure.
[[nodiscard]] std::vector<TcpSocket> parse_tcp_sockets(std::string_view table);

/// All of this process's network.
[[nodiscard]] std::vector<TcpSocket> tcp_sockets();

}  // namespace ddprun::launcher
