#pragma once

#include "launcher/doctor/machine_facts.hpp"

namespace ddprun::launcher {

/// Looks at this machine. May take as long as the resolver takes for this host's name; makes a
/// cgroup and a PID namespace, which are gone again, and changes nothing else.
[[nodiscard]] MachineFacts read_machine_facts();

}  // namespace ddprun::launcher
