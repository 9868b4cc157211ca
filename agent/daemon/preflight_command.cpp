#include "agent/daemon/preflight_command.hpp"

#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "agent/process/start_program.hpp"
#include "rendezvous/base/signal_name.hpp"

namespace ddprun::agent {

using boost::asio::posix::stream_descriptor;

namespace {

/// What an end says about the machine; empty: that it is fit.
std::string fault_of(const siginfo_t& end) {
    if (end.si_code != CLD_EXITED) {
        return "was ended by " + signal_name(end.si_status);
    }
    return end.si_status == 0 ? "" : fmt::format("exited with code {}", end.si_status);
}

}  // namespace

PreflightCommand::PreflightCommand(boost::asio::io_context& io, std::string command,
                                   Milliseconds timeout, Events events)
    : io_(io),
      deadline_(io),
      command_(std::move(command)),
      timeout_(timeout),
      events_(std::move(events)) {}

void PreflightCommand::run(const std::shared_ptr<const void>& owner) {
    cancel();
    if (const Result<void> started = start(owner); !started) {
        boost::asio::post(io_, [this, owner, why = started.error().what] { finish(why); });
        return;
    }
    deadline_.expires_after(timeout_);
    deadline_.async_wait([this, owner](boost::system::error_code failure) {
        if (!failure && child_ != 0) {
            const std::chrono::duration<double> seconds = timeout_;
            finish(fmt::format("took longer than {:g} s", seconds.count()));
        }
    });
}

Result<void> PreflightCommand::start(const std::shared_ptr<const void>& owner) {
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", command_};
    Result<StartedProgram> started = start_program(spec);
    if (!started) {
        return started.error();
    }
    child_ = started->pid;
    events_.on_child(child_);
    if (!started->pidfd.is_open()) {
        cancel();
        return Error{ErrorCode::System, "cannot be waited for: this kernel has no pidfd"};
    }
    auto end = std::make_shared<stream_descriptor>(io_, started->pidfd.release());
    end->async_wait(stream_descriptor::wait_read,
                    [this, owner, end, pid = child_](boost::system::error_code failure) {
                        siginfo_t info{};
                        (void)waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
                        if (!failure && child_ == pid) {
                            child_ = 0;
                            finish(fault_of(info));
                        }
                    });
    return {};
}

void PreflightCommand::finish(std::string why) {
    cancel();
    events_.on_done(std::move(why));
}

void PreflightCommand::cancel() {
    deadline_.cancel();
    if (child_ != 0) {
        // It leads a group; what it has started is in there. Not reaped yet, its number is its own.
        (void)kill(-child_, SIGKILL);
        child_ = 0;
    }
}

}  // namespace ddprun::agent
