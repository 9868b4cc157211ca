#include "launcher/run/init_process.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::launcher {

namespace {

constexpr pid_t kInit = 1;

/// Once `ddprun` has exited, exits with its status.
void reap(pid_t ddprun) {
    for (;;) {
        int status = 0;
        const pid_t pid = ::waitpid(-1, &status, WNOHANG);
        if (pid == 0 || (pid < 0 && errno != EINTR)) {
            return;
        }
        if (pid == ddprun) {
            ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : kExitSignalBase + WTERMSIG(status));
        }
    }
}

/// A terminal signals all processes in its foreground by itself.
bool is_from_terminal(const siginfo_t& info) {
    return info.si_code == SI_KERNEL;
}

}  // namespace

void stay_behind_as_init() {
    if (::getpid() != kInit) {
        return;
    }
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before);
    const pid_t ddprun = ::fork();
    if (ddprun <= 0) {
        // Without another process it has to do as the first one.
        ::sigprocmask(SIG_SETMASK, &before, nullptr);
        return;
    }
    for (;;) {
        siginfo_t info{};
        const int signal = ::sigwaitinfo(&all, &info);
        if (signal == SIGCHLD) {
            reap(ddprun);
        } else if (signal > 0 && !is_from_terminal(info)) {
            ::kill(ddprun, signal);
        }
    }
}

}  // namespace ddprun::launcher
