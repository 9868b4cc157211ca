#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/limits.hpp"

namespace ddprun::rdzv {

/// Has the kernel ask whether the other machine still answers when nothing was heard of it for
/// Limits::keepalive_after. Failure changes nothing: then a machine that has gone is noticed when
/// something is sent to it.
inline void ask_when_silent(int socket, const Limits& limits) {
    const auto set = [socket](int level, int option, int value) {
        ::setsockopt(socket, level, option, &value, sizeof(value));
    };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(limits.keepalive_after.count() / 1000));
    set(IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(limits.keepalive_interval.count() / 1000));
}

}  // namespace ddprun::rdzv
