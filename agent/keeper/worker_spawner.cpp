#include "agent/keeper/worker_spawner.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <string_view>

#include "agent/process/fork_into.hpp"
#include "base/os/signals_blocked.hpp"
#include "base/os/start_program.hpp"
#include "base/search_path.hpp"

namespace ddprun::agent {

namespace {

boost::system::error_code system_code(int errno_value) {
    return {errno_value, boost::system::system_category()};
}

constexpr int kExecFailed = 127;
constexpr int kNoReport = 125;
/// The kernel's form of a list of CPUs, made before the fork; empty: leave them as they are.
std::vector<cpu_set_t> as_cpu_set(const std::vector<int>& cpus) {
    std::vector<cpu_set_t> set;
    for (const int cpu : cpus) {
        const auto number = static_cast<std::size_t>(cpu);
        set.resize(std::max(set.size(), number / CPU_SETSIZE + 1));
        CPU_SET_S(number, set.size() * sizeof(cpu_set_t), set.data());
    }
    return set;
}

/// All that the child needs after the fork, where it may allocate nothing.
struct ChildSetup {
    const Containment& containment;
    const SavedProcessState& saved_state;
    const std::vector<cpu_set_t>& cpus;
    int out;
    int err;
    int standby;  ///< -1: it is none
    WorkerStdin stdin_from;
    int exec_status;
    const char* program;
    char* const* arguments;
    char* const* environment;
};

/// After setsid() and with the worker's stdout in its place. Returns 0 or an errno.
int set_stdin(WorkerStdin from) {
    if (from == WorkerStdin::Inherited) {
        return 0;
    }
    if (from == WorkerStdin::Nothing) {
        const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        return null >= 0 && dup2(null, STDIN_FILENO) == STDIN_FILENO ? 0 : errno;
    }
    const bool is_done =
        dup2(STDOUT_FILENO, STDIN_FILENO) == STDIN_FILENO && ioctl(STDIN_FILENO, TIOCSCTTY, 0) == 0;
    return is_done ? 0 : errno;
}

/// Makes the child what a worker finds. Returns 0 or an errno.
int prepare(const ChildSetup& setup) {
    if (const int error = setup.containment.enter(); error != 0) {
        return error;
    }
    const std::vector<cpu_set_t>& cpus = setup.cpus;
    if (!cpus.empty() && sched_setaffinity(0, cpus.size() * sizeof(cpu_set_t), cpus.data()) != 0) {
        return errno;  // Our cpuset has none of them.
    }
    if (dup2(setup.out, STDOUT_FILENO) < 0 || dup2(setup.err, STDERR_FILENO) < 0) {
        return errno;
    }
    if (const int error = set_stdin(setup.stdin_from); error != 0) {
        return error;
    }
    close_on_exec_from(STDERR_FILENO + 1);
    // The keeper's own socket has the number; here it is closed with that.
    if (setup.standby >= 0 && dup2(setup.standby, kStandbySocket) < 0) {
        return errno;
    }
    return setup.saved_state.restore();
}

[[noreturn]] void become_worker(const ChildSetup& setup) {
    int error = prepare(setup);
    if (error == 0) {
        execve(setup.program, setup.arguments, setup.environment);
        error = errno;
    }
    const ssize_t written = write(setup.exec_status, &error, sizeof error);
    _exit(written == static_cast<ssize_t>(sizeof error) ? kExecFailed : kNoReport);
}

std::string_view search_path_of(const std::vector<std::string>& environment) {
    constexpr std::string_view kKey = "PATH=";
    for (const std::string& variable : environment) {
        if (std::string_view(variable).substr(0, kKey.size()) == kKey) {
            return std::string_view(variable).substr(kKey.size());
        }
    }
    return kDefaultSearchPath;
}

/// As execve() wants them; it changes none.
std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
    std::vector<char*> pointers;
    pointers.reserve(strings.size() + 1);
    for (const std::string& string : strings) {
        pointers.push_back(const_cast<char*>(string.c_str()));
    }
    pointers.push_back(nullptr);
    return pointers;
}

}  // namespace

WorkerSpawner::WorkerSpawner(const Containment& containment, SavedProcessState saved_state)
    : containment_(containment), saved_state_(saved_state) {}

boost::system::result<SpawnedWorker> WorkerSpawner::spawn(const KeeperSpawn& spawn,
                                                          const UniqueFd& out, const UniqueFd& err,
                                                          const UniqueFd& standby) {
    const std::vector<std::string> environment = merged_environment(spawn.environment);
    const auto program = find_program(spawn.command[0], std::string(search_path_of(environment)));
    if (program.has_error()) {
        return program.error();
    }
    std::array<int, 2> status{};
    if (pipe2(status.data(), O_CLOEXEC) != 0) {
        return system_code(errno);
    }
    UniqueFd status_read(status[0]);
    const UniqueFd status_write(status[1]);

    const std::vector<char*> environment_pointers = pointers_to(environment);
    const std::vector<char*> arguments = pointers_to(spawn.command);
    const std::vector<cpu_set_t> cpus = as_cpu_set(spawn.cpus);
    const ChildSetup setup{.containment = containment_,
                           .saved_state = saved_state_,
                           .cpus = cpus,
                           .out = out.get(),
                           .err = err.get(),
                           .standby = standby.get(),
                           .stdin_from = spawn.stdin_from,
                           .exec_status = status_write.get(),
                           .program = program->c_str(),
                           .arguments = arguments.data(),
                           .environment = environment_pointers.data()};
    const SignalsBlocked blocked;
    const pid_t pid = fork_into(containment_.birthplace());
    if (pid == 0) {
        become_worker(setup);
    }
    if (pid < 0) {
        return system_code(errno);
    }
    return SpawnedWorker{pid, std::move(status_read)};
}

boost::system::result<std::string> find_program(const std::string& name,
                                                const std::string& search_path) {
    if (name.empty()) {
        return system_code(ENOENT);
    }
    if (name.find('/') != std::string::npos) {
        return name;
    }
    int error = ENOENT;
    for (const std::string& path : places_in_path(search_path, name)) {
        struct stat status {};
        if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
            if (access(path.c_str(), X_OK) == 0) {
                return path;
            }
            error = EACCES;
        }
    }
    return system_code(error);
}

std::vector<std::string> merged_environment(const Environment& overlay) {
    std::map<std::string_view, std::string_view> set_over;
    for (const auto& [key, value] : overlay) {
        set_over.insert_or_assign(key, value);
    }
    std::vector<std::string> merged;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string_view text(*variable);
        if (!set_over.contains(text.substr(0, text.find('=')))) {
            merged.emplace_back(text);
        }
    }
    for (const auto& [key, value] : set_over) {
        merged.push_back(std::string(key) + "=" + std::string(value));
    }
    return merged;
}

}  // namespace ddprun::agent
