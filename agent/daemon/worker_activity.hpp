#pragma once

#include <string>

#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Returns what the main thread of that process does now, by /proc; Unknown: it is gone, or this
/// user may not look. A wait on a connection to `store_port` is a wait for the store; kernels
/// before Linux 5.6 and some containers do not report it. `root` is put before the path.
[[nodiscard]] rdzv::Activity activity_of_process(int pid, int store_port,
                                                 const std::string& root = {});

}  // namespace ddprun::agent
