#pragma once

#include <cstdint>
#include <string>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::rdzv {

/// A bound and listening TCP socket, non-blocking and close-on-exec, and its numeric address.
struct Listener {
    UniqueFd fd;
    std::string host;
    std::uint16_t port = 0;
};

/// Binds and listens on `host` (a name is resolved, blocking) and `port`; 0 lets the kernel choose.
/// Failure names host, port and reason; ErrorCode::AddressInUse means that a server listens there.
[[nodiscard]] Result<Listener> listen_on(const std::string& host, std::uint16_t port);

/// Takes over `fd`, which another program bound and listens on. Failure: it is no such socket.
[[nodiscard]] Result<Listener> adopt_listener(UniqueFd fd);

}  // namespace ddprun::rdzv
