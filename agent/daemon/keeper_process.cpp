#include "agent/daemon/keeper_process.hpp"

#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/start_first_process.hpp"
#include "base/os/start_program.hpp"

namespace ddprun::agent {

namespace {

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
    : unkillable_after_(unkillable_after), events_(std::move(events)), deadline_(io), child_(io) {}

Result<void> KeeperProcess::start(const KeeperProgram& program, const SavedProcessState& state,
                                  const Containment& containment, const UniqueFd& socket) {
    ProgramSpec spec;
    spec.may_be_slow = program.may_stall;
    spec.command = {program.path, state.to_text(), std::to_string(unkillable_after_.count()),
                    std::string(names_of(containment.level()).word)};
    spec.fds = {FdMapping{.from = socket.get(), .to = kKeeperSocket}};
    if (containment.cgroup_folder() >= 0) {
        spec.fds.push_back(FdMapping{.from = containment.cgroup_folder(), .to = kKeeperCgroup});
    }
    Result<StartedProgram> started = start_at(containment.level(), spec);
    if (started.has_error()) {
        return started.error();
    }
    child_.adopt(std::move(*started));
    child_.async_wait([this](const siginfo_t& /*end*/) {
        deadline_.cancel();
        events_.on_ended();
    });
    return {};
}

void KeeperProcess::kill() {
    if (pid() == 0) {
        return;
    }
    child_.signal(SIGKILL);
    // The first process of a PID namespace ends after all others in that namespace.
    deadline_.expires_after(unkillable_after_);
    deadline_.async_wait([this](const boost::system::error_code& error) {
        if (!error && pid() != 0) {
            const std::string rest = "process " + describe_process(pid(), pid());
            child_.forget();
            events_.on_stuck(rest);
        }
    });
}

}  // namespace ddprun::agent
