#pragma once

#include <sys/types.h>

namespace ddprun::agent {

/// fork(), whose child is born in the cgroup v2 `folder`; -1: in this process's. Moving a process
/// that lives into a cgroup would make it wait for every processor of the machine, tens of
/// milliseconds. For processes of one thread: the child may call what is async-signal-safe until it
/// executes a program. -1 and errno on failure.
[[nodiscard]] pid_t fork_into(int folder);

}  // namespace ddprun::agent
