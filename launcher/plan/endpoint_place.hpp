#pragma once

#include <string>
#include <vector>

#include "launcher/plan/launch_plan.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

/// The facts that are known of an endpoint at one attempt to reach it.
struct EndpointFacts {
    rdzv::Endpoint endpoint;                ///< as the user gave it
    std::vector<rdzv::Endpoint> addresses;  ///< numeric: what its host has been resolved to
    std::vector<std::string> own;           ///< addresses of this machine's interfaces
    std::string outside;                    ///< of these, the default route's; may be empty
};

struct EndpointPlace {
    std::vector<rdzv::Endpoint> addresses;  ///< to be tried in this order
    /// Those of this machine, always in the same order; a daemon listens at the first.
    std::vector<rdzv::Endpoint> own;
    bool is_loopback = false;  ///< no other machine can reach it
    bool is_moved = false;     ///< the host meant 127.0.1.1, and `outside` is used instead
};

/// Whose machine an endpoint is, and where to reach it. A host name that means only 127.0.1.1
/// (Debian's entry for a machine's own name) is taken for this machine's outside address. If a host
/// has loopback addresses and others, the others count: loopback is this machine's everywhere.
[[nodiscard]] EndpointPlace place_endpoint(EndpointFacts facts);

/// The ddprun of this machine starts a daemon there: it owns the endpoint, which is the only one,
/// and has the certificate that the daemon needs.
[[nodiscard]] bool may_serve(const LaunchPlan& plan, const EndpointPlace& place);

/// The notes for the user about an endpoint, a line each.
[[nodiscard]] std::vector<std::string> endpoint_notes(const LaunchPlan& plan,
                                                      const rdzv::Endpoint& endpoint,
                                                      const EndpointPlace& place);

}  // namespace ddprun::launcher
