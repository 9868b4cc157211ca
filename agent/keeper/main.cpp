#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include "agent/keeper/keeper.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/saved_process_state.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace {

using namespace ddprun;

int usage() {
    fmt::print(stderr,
               "ddprun-keeper: this program is started by ddprun, which gives it a socket; start "
               "ddprun instead\n");
    return kExitUsage;
}

/// Takes a descriptor that the agent gave us; no worker gets it.
UniqueFd inherited(int fd) {
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd(fd);
}

bool has_peer_gone(const UniqueFd& socket) {
    pollfd peer{socket.get(), POLLRDHUP, 0};
    return poll(&peer, 1, 0) == 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        return usage();
    }
    const Result<agent::SavedProcessState> saved = agent::SavedProcessState::from_text(argv[1]);
    const std::optional<long long> unkillable_after = whole_number<long long>(argv[2]);
    const std::optional<ContainmentLevel> level = containment_of(argv[3]);
    int type = 0;
    socklen_t size = sizeof type;
    if (saved.has_error() || !level || !unkillable_after ||
        getsockopt(agent::kKeeperSocket, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
        return usage();
    }
    UniqueFd socket = inherited(agent::kKeeperSocket);
    (void)fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    agent::ignore_asking_signals();
    std::optional<agent::Cgroup> cgroup;
    if (allows_cgroup(*level)) {
        Result<agent::Cgroup> given = agent::Cgroup::from(inherited(agent::kKeeperCgroup));
        if (given.has_value()) {
            cgroup = std::move(*given);
        } else if (given.error().code == ErrorCode::NotFound && has_peer_gone(socket)) {
            return kExitSuccess;  // Its agent has ended, and took the cgroup along.
        } else if (*level == ContainmentLevel::Cgroup) {
            fmt::print(stderr, "ddprun-keeper: {}\n", given.error().what);
            return kExitInternal;
        }
    }
    const bool is_first = *level == ContainmentLevel::PidNamespace;
    agent::OuterPids outer_pids =
        is_first ? agent::OuterPids(inherited(agent::kKeeperOuterDescriptors)) : agent::OuterPids();

    boost::asio::io_context io(1);
    agent::Containment containment({}, std::move(cgroup), level, std::move(outer_pids));
    agent::Keeper keeper(io, std::move(socket), *saved, std::move(containment),
                         Milliseconds(*unkillable_after));
    io.run();
    return keeper.has_failed() ? kExitInternal : kExitSuccess;
}
