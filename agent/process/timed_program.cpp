#include "agent/process/timed_program.hpp"

#include <sys/wait.h>

#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>

namespace ddprun::agent {

using boost::asio::posix::stream_descriptor;

TimedProgram::TimedProgram(boost::asio::io_context& io, Events events)
    : io_(io), deadline_(io), events_(std::move(events)) {}

Result<bool> TimedProgram::start(const ProgramSpec& spec, std::optional<Milliseconds> timeout,
                                 const std::shared_ptr<const void>& owner) {
    cancel();
    Result<StartedProgram> started = start_program(spec);
    if (!started) {
        return started.error();
    }
    const int pid = started->pid;
    child_ = pid;
    events_.on_child(pid);
    if (timeout) {
        deadline_.expires_after(*timeout);
        deadline_.async_wait([this, owner, pid](boost::system::error_code failure) {
            if (!failure && child_ == pid) {
                cancel();
                events_.on_end(std::nullopt);
            }
        });
    }
    if (!started->pidfd.is_open()) {
        return false;
    }
    // One that was given up is reaped, too, when it ends.
    unreaped_ += 1;
    auto end = std::make_shared<stream_descriptor>(io_, started->pidfd.release());
    end->async_wait(stream_descriptor::wait_read,
                    [this, owner, end, pid](boost::system::error_code failure) {
                        siginfo_t info{};
                        (void)waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
                        unreaped_ -= 1;
                        if (!failure && child_ == pid) {
                            child_ = 0;
                            deadline_.cancel();
                            events_.on_end(info);
                        }
                    });
    return true;
}

void TimedProgram::cancel() {
    deadline_.cancel();
    if (child_ != 0) {
        // It leads a group; what it has started is in there. Not reaped yet, its number is its own.
        (void)kill(-child_, SIGKILL);
        child_ = 0;
    }
}

}  // namespace ddprun::agent
