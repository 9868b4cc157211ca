#include "agent/process/fork_into.hpp"

#include <linux/sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace ddprun::agent {

pid_t fork_into(int folder) {
    if (folder < 0) {
        return fork();
    }
    clone_args how{};
    how.flags = CLONE_INTO_CGROUP;
    how.exit_signal = SIGCHLD;
    how.cgroup = static_cast<__aligned_u64>(folder);
    return static_cast<pid_t>(syscall(SYS_clone3, &how, sizeof how));
}

}  // namespace ddprun::agent
