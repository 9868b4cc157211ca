#pragma once

#include <functional>
#include <string>

namespace ddprun::agent {

/// Writes the kernel's view of all threads of `pid`: state, where each waits in the kernel, its
/// system call, and its stack there if this user may see it. Each thread is handed to `write` by
/// itself, for the next one may never answer.
void write_kernel_stacks(int pid, const std::function<void(const std::string&)>& write);

/// The program it executes, without its folder; empty if that is not told.
[[nodiscard]] std::string program_of_process(int pid);

}  // namespace ddprun::agent
