#pragma once

#include <cstdint>
#include <string>

namespace ddprun {

/// The address at which a node serves the workers' store, should it be group rank 0's.
struct StoreAddress {
    std::string host;
    std::uint16_t port = 0;  ///< 0: it does not, the rendezvous does, on its own port

    bool operator==(const StoreAddress&) const = default;
};

}  // namespace ddprun
