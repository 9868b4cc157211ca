#include "agent/daemon/keeper_process.hpp"

#include <poll.h>
#include <sys/wait.h>

#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/start_first_process.hpp"
#include "base/os/start_program.hpp"

namespace ddprun::agent {

namespace {

using boost::asio::posix::stream_descriptor;

Result<StartedProgram> start_at(ContainmentLevel level, const ProgramSpec& spec) {
    if (level != ContainmentLevel::PidNamespace) {
        return start_program(spec);
    }
    Result<StartedProgram> started = start_first_process(spec, kKeeperOuterDescriptors);
    if (started.has_error()) {
        return Error{started.error().code, fmt::format("containment {} cannot be had: {}",
                                                       names_of(level).name, started.error().what)};
    }
    return started;
}

}  // namespace

KeeperProcess::KeeperProcess(boost::asio::io_context& io, Milliseconds unkillable_after,
                             Events events)
    : io_(io), unkillable_after_(unkillable_after), events_(std::move(events)), deadline_(io) {}

Result<void> KeeperProcess::start(const std::string& program, const SavedProcessState& state,
                                  const Containment& containment, const UniqueFd& socket,
                                  const std::shared_ptr<const void>& owner) {
    ProgramSpec spec;
    spec.command = {program, state.to_text(), std::to_string(unkillable_after_.count()),
                    std::string(names_of(containment.level()).word)};
    spec.fds = {FdMapping{.from = socket.get(), .to = kKeeperSocket}};
    if (containment.cgroup_folder() >= 0) {
        spec.fds.push_back(FdMapping{.from = containment.cgroup_folder(), .to = kKeeperCgroup});
    }
    Result<StartedProgram> started = start_at(containment.level(), spec);
    if (started.has_error()) {
        return started.error();
    }
    pid_ = started->pid;
    if (started->pidfd.is_open()) {
        pidfd_ = std::make_unique<stream_descriptor>(io_, started->pidfd.release());
        watch(owner);
    }
    return {};
}

void KeeperProcess::watch(const std::shared_ptr<const void>& owner) {
    pidfd_->async_wait(stream_descriptor::wait_read,
                       [this, kept = owner](const boost::system::error_code& error) {
                           if (error) {
                               return;
                           }
                           // The loop may wake us for what was here before in its tables.
                           pollfd ended{pidfd_->native_handle(), POLLIN, 0};
                           if (poll(&ended, 1, 0) == 0) {
                               watch(kept);
                               return;
                           }
                           events_.on_ended();
                       });
}

void KeeperProcess::kill(const std::shared_ptr<const void>& owner) {
    if (pid_ == 0) {
        return;
    }
    (void)::kill(pid_, SIGKILL);
    // The first process of a PID namespace ends after everybody else in there.
    deadline_.expires_after(unkillable_after_);
    deadline_.async_wait([this, kept = owner](const boost::system::error_code& error) {
        if (!error && pid_ != 0) {
            const std::string rest = "process " + describe_process(pid_, pid_);
            forget();
            events_.on_stuck(rest);
        }
    });
}

bool KeeperProcess::reap() {
    siginfo_t info{};
    if (pid_ == 0 || waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 ||
        info.si_pid == 0) {
        return false;
    }
    forget();
    return true;
}

void KeeperProcess::forget() {
    pid_ = 0;
    pidfd_.reset();
    deadline_.cancel();
}

}  // namespace ddprun::agent
