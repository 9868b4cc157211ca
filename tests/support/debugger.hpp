#pragma once

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/unique_fd.hpp"

namespace ddprun::test {

/// A child process that can hold another one, so that only this child can reap the held one once
/// dead. To every other process the held one survives SIGKILL.
class Debugger {
public:
    Debugger() {
        make_pipe(wanted_read_, wanted_write_);
        make_pipe(answer_read_, answer_write_);
        pid_ = fork();
        if (pid_ == 0) {
            wanted_write_.reset();
            hold();
        }
        wanted_read_.reset();
    }
    ~Debugger() { let_go(); }
    Debugger(const Debugger&) = delete;
    Debugger& operator=(const Debugger&) = delete;

    [[nodiscard]] int pid() const { return pid_; }

    /// Blocks until it holds `pid`; once. False: this machine does not allow that.
    [[nodiscard]] bool seize(int pid) const {
        bool is_held = false;
        return write(wanted_write_.get(), &pid, sizeof pid) == ssize_t{sizeof pid} &&
               read(answer_read_.get(), &is_held, sizeof is_held) == ssize_t{sizeof is_held} &&
               is_held;
    }

    /// Ends it, and with it its hold.
    void let_go() {
        if (wanted_write_.is_open()) {
            wanted_write_.reset();
            (void)waitpid(pid_, nullptr, 0);
        }
    }

private:
    static void make_pipe(UniqueFd& read_end, UniqueFd& write_end) {
        int fds[2] = {-1, -1};
        (void)!pipe2(fds, O_CLOEXEC);
        read_end.reset(fds[0]);
        write_end.reset(fds[1]);
    }

    [[noreturn]] void hold() const {
        int pid = 0;
        if (read(wanted_read_.get(), &pid, sizeof pid) == ssize_t{sizeof pid}) {
            const bool is_held = ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
            (void)!write(answer_write_.get(), &is_held, sizeof is_held);
            (void)!read(wanted_read_.get(), &pid, sizeof pid);
        }
        _exit(0);
    }

    UniqueFd wanted_read_;
    UniqueFd wanted_write_;
    UniqueFd answer_read_;
    UniqueFd answer_write_;
    int pid_ = 0;
};

}  // namespace ddprun::test
