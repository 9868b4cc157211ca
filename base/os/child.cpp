#include "base/os/child.hpp"

#include <sys/wait.h>

#include <cerrno>
#include <utility>

#include <boost/asio/post.hpp>

#include "base/check.hpp"
#include "base/os/give_to_loop.hpp"

namespace ddprun {

using boost::system::error_code;

Result<void> Child::start(const ProgramSpec& spec) {
    Result<StartedProgram> started = start_program(spec);
    if (started.has_error()) {
        return started.error();
    }
    adopt(std::move(*started));
    return {};
}

void Child::adopt(StartedProgram started) {
    DDP_CHECK(pid_ == 0 && started.pid > 0, pid_, started.pid);
    pid_ = started.pid;
    if (started.pidfd.is_open()) {
        // If the kernel cannot watch the pidfd, SIGCHLD reports the end, as on kernels without one.
        static_cast<void>(give_to_loop(pidfd_, std::move(started.pidfd)));
    }
}

void Child::async_wait(OnEnd on_end) {
    DDP_CHECK(pid_ != 0);
    auto look = [this, on_end = std::move(on_end)](const error_code& failure) mutable {
        if (failure || pid_ == 0) {
            return;
        }
        // Being woken is no proof of an end: the loop may wake us for what its tables had at this
        // place before, and SIGCHLD is for any child.
        if (const std::optional<siginfo_t> end = reap()) {
            on_end(*end);
        } else {
            async_wait(std::move(on_end));
        }
    };
    if (pidfd_.is_open()) {
        pidfd_.async_wait(boost::asio::posix::descriptor_base::wait_read, std::move(look));
    } else if (std::exchange(has_child_signals_, true)) {
        child_signals_.async_wait(
            [look = std::move(look)](const error_code& failure, int) mutable { look(failure); });
    } else {
        error_code ignored;  // It fails only where it is caught already.
        child_signals_.add(SIGCHLD, ignored);
        // It may have ended before that.
        boost::asio::post(io_, [look = std::move(look)]() mutable { look(error_code()); });
    }
}

std::optional<siginfo_t> Child::reap() {
    siginfo_t info{};
    if (pid_ == 0) {
        return std::nullopt;
    }
    const int answer = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
    // On failure other code reaped the child, or SIGCHLD is ignored: its pid may be reused.
    DDP_CHECK(answer == 0, pid_, errno);
    if (info.si_pid == 0) {
        return std::nullopt;
    }
    forget();
    return info;
}

void Child::signal(int number) const {
    if (pid_ != 0) {
        (void)kill(pid_, number);
    }
}

void Child::signal_group(int number) const {
    if (pid_ != 0) {
        (void)kill(-pid_, number);
    }
}

void Child::forget() {
    pid_ = 0;
    has_child_signals_ = false;
    error_code ignored;
    pidfd_.close(ignored);
    child_signals_.cancel(ignored);
    child_signals_.clear(ignored);
}

}  // namespace ddprun
