#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace ddprun::rdzv {

/// Address at which a rendezvous serves: a host name or numeric address, and a port.
struct Endpoint {
    std::string host;
    std::uint16_t port = 0;

    bool operator==(const Endpoint&) const = default;
};

/// "HOST:PORT" for people and logs; an IPv6 address gets its brackets.
[[nodiscard]] std::string to_string(const Endpoint& endpoint);

/// Reads "HOST:PORT" or "[IPV6]:PORT". Failure says what is wrong with `text`.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace ddprun::rdzv
