#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "launcher/doctor/peers.hpp"

namespace ddprun::launcher {

struct PeerCheckOptions {
    std::vector<std::string> hosts;  ///< the same list on each of them, this one too
    std::string self = {};           ///< this one, as the list names it; empty: by its address
    std::uint16_t port = 0;          ///< on which all listen
    Milliseconds wait{0};            ///< the others may begin so much later
};

/// Listens on this machine at that port and at one that the kernel chooses, and connects to both of
/// every other host, until all have reached all or the time is over. Each side says a number and a
/// port: that proves nothing, and nothing is done for it. Blocks; says on stderr what it waits for.
/// Fails if no host of the list is this machine. Listens on all its addresses, unless all hosts of
/// the list have loopback addresses.
[[nodiscard]] Result<PeersFacts> try_peers(const PeerCheckOptions& options);

}  // namespace ddprun::launcher
