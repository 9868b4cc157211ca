#pragma once

#include <cstddef>
#include <string>

namespace ddprun::rdzv {

/// The clients that wait in a store, at one moment.
struct StoreWaits {
    std::size_t clients = 0;  ///< that are connected
    std::size_t waiting = 0;  ///< of these, in WAIT or BARRIER
    std::string key;          ///< the one that most of them wait for; of equals, the first by name
    std::size_t for_key = 0;  ///< wait for it

    bool operator==(const StoreWaits&) const = default;
};

}  // namespace ddprun::rdzv
