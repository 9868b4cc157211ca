#include "base/os/start_program.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun {

namespace {

/// posix_spawn's two parameter blocks with an owner. It vforks, so that the size of this process
/// does not count, and reports the errno of a failed exec.
class SpawnParameters {
public:
    SpawnParameters() {
        DDP_CHECK(posix_spawn_file_actions_init(&actions) == 0);
        DDP_CHECK(posix_spawnattr_init(&attributes) == 0);
    }
    ~SpawnParameters() {
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
    }
    SpawnParameters(const SpawnParameters&) = delete;
    SpawnParameters& operator=(const SpawnParameters&) = delete;

    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
};

void set_attributes(SpawnParameters& parameters, bool has_own_session) {
    sigset_t none;
    sigemptyset(&none);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigmask(&parameters.attributes, &none);
    posix_spawnattr_setsigdefault(&parameters.attributes, &all);
    int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    if (has_own_session) {
        flags |= POSIX_SPAWN_SETSID;
    }
    posix_spawnattr_setflags(&parameters.attributes, static_cast<short>(flags));
}

/// Maps the descriptors and closes all others. `copies` keeps what the actions name alive: copies
/// above every target, so that no mapping overwrites the source of another.
Result<void> set_descriptors(SpawnParameters& parameters, const std::vector<FdMapping>& fds,
                             std::vector<UniqueFd>& copies) {
    int highest = 2;
    std::set<int> kept{0, 1, 2};
    for (const FdMapping& mapping : fds) {
        highest = std::max(highest, mapping.to);
        kept.insert(mapping.to);
    }
    for (const FdMapping& mapping : fds) {
        UniqueFd copy(fcntl(mapping.from, F_DUPFD_CLOEXEC, highest + 1));
        if (!copy.is_open()) {
            return system_error(errno, fmt::format("cannot pass on descriptor {}", mapping.from));
        }
        posix_spawn_file_actions_adddup2(&parameters.actions, copy.get(), mapping.to);
        copies.push_back(std::move(copy));
    }
    for (int fd = 3; fd < highest; ++fd) {
        if (!kept.contains(fd)) {
            posix_spawn_file_actions_addclose(&parameters.actions, fd);
        }
    }
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    // What ddprun itself inherited from a careless shell need not be close-on-exec.
    posix_spawn_file_actions_addclosefrom_np(&parameters.actions, highest + 1);
#endif
    return {};
}

}  // namespace

Result<StartedProgram> start_program(const ProgramSpec& spec) {
    DDP_CHECK(!spec.command.empty());
    SpawnParameters parameters;
    std::vector<UniqueFd> copies;
    set_attributes(parameters, spec.has_own_session);
    const Result<void> mapped = set_descriptors(parameters, spec.fds, copies);
    if (mapped.has_error()) {
        return mapped.error();
    }
    std::vector<char*> argv;
    for (const std::string& argument : spec.command) {
        argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    StartedProgram started;
    const int error = posix_spawn(&started.pid, spec.command[0].c_str(), &parameters.actions,
                                  &parameters.attributes, argv.data(), environ);
    if (error != 0) {
        return system_error(error, fmt::format("cannot start {}", spec.command[0]));
    }
    started.pidfd = open_pidfd(started.pid);
    return started;
}

UniqueFd open_pidfd(int pid) {
    // The kernel makes every pidfd close-on-exec.
    return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

Result<std::string> program_beside_us(const std::string& name) {
    std::array<char, PATH_MAX> buffer;
    const ssize_t length = readlink("/proc/self/exe", buffer.data(), buffer.size());
    if (length <= 0) {
        return system_error(errno, "cannot read /proc/self/exe");
    }
    const std::string_view self(buffer.data(), static_cast<std::size_t>(length));
    std::string path = fmt::format("{}/{}", self.substr(0, self.rfind('/')), name);
    if (access(path.c_str(), X_OK) != 0) {
        return system_error(
            errno, fmt::format("{} is needed beside {}; install both in one folder", path, self));
    }
    return path;
}

}  // namespace ddprun
