#pragma once

#include <string>

#include "base/result.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

/// An endpoint whose host is a numeric address.
struct EndpointAddress {
    rdzv::Endpoint endpoint;
    bool is_ours = false;      ///< an interface of this machine has the address
    bool is_loopback = false;  ///< other machines cannot reach it
    std::string note;          ///< to be said: the name led elsewhere than it seems; may be empty
};

/// Looks the host up, blocking; a numeric address needs no look-up. A host name that means only
/// 127.0.1.1 (Debian's entry for the machine's own name) is replaced by the address of the
/// interface that has the default route. Failure names host and reason.
[[nodiscard]] Result<EndpointAddress> find_endpoint(const rdzv::Endpoint& endpoint);

}  // namespace ddprun::launcher
