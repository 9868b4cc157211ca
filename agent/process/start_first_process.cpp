#include "agent/process/start_first_process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/os/read_files.hpp"
#include "base/os/signals_blocked.hpp"

namespace ddprun::agent {

namespace {

constexpr int kFailed = 127;
constexpr int kSignalMost = 64;

/// The steps of the child after its birth, in this order.
enum class Step : int { Birth, Users, Session, Descriptors, Proc, Program };

struct Failure {
    Step step = Step::Birth;
    int error = 0;
};

/// All that the child needs, where it may allocate nothing.
struct ChildSetup {
    std::string user_map;
    std::string group_map;
    std::vector<FdMapping> fds;
    std::vector<char*> arguments;  ///< empty: nothing is executed
    int outer_descriptors = -1;    ///< -1: not wanted
    int report = -1;
};

bool write_to(const char* path, const std::string& text) {
    const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
    return file.is_open() &&
           write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

/// This user is itself in there, and no other user exists. A user that may not give up groups may
/// map none but its own.
bool map_users(const ChildSetup& setup) {
    return write_to("/proc/self/setgroups", "deny") &&
           write_to("/proc/self/uid_map", setup.user_map) &&
           write_to("/proc/self/gid_map", setup.group_map);
}

/// In a session of its own, with all signals as a program expects them but still blocked. It dies
/// with its parent; if that is dead by now the program reads an end of file.
bool lead_session() {
    for (int signal = 1; signal <= kSignalMost; ++signal) {
        struct sigaction action {};
        action.sa_handler = SIG_DFL;
        (void)sigaction(signal, &action, nullptr);  // Some cannot be changed, and are default.
    }
    return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && setsid() >= 0;
}

bool take_descriptors(const ChildSetup& setup) {
    // Before there is another /proc: this one's numbers are wanted.
    const int outer = open("/proc/self/fdinfo", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (outer < 0) {
        return false;
    }
    close_on_exec_from(STDERR_FILENO + 1);
    // By chance it may have that number already, and be closed on exec.
    if (setup.outer_descriptors >= 0 && (dup2(outer, setup.outer_descriptors) < 0 ||
                                         fcntl(setup.outer_descriptors, F_SETFD, 0) != 0)) {
        return false;
    }
    return std::all_of(setup.fds.begin(), setup.fds.end(), [](const FdMapping& mapping) {
        return dup2(mapping.from, mapping.to) >= 0;
    });
}

/// Returns only what failed; nothing failed: executes the program, or ends with 0 without one.
Failure become_first_process(const ChildSetup& setup, bool has_user_namespace) {
    if (has_user_namespace && !map_users(setup)) {
        return {Step::Users, errno};
    }
    if (!lead_session()) {
        return {Step::Session, errno};
    }
    if (!take_descriptors(setup)) {
        return {Step::Descriptors, errno};
    }
    // Later mounts of the outer namespace show in here; mounts made in here stay in here.
    if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
        return {Step::Proc, errno};
    }
    if (setup.arguments.empty()) {
        _exit(0);
    }
    sigset_t none;
    sigemptyset(&none);
    (void)pthread_sigmask(SIG_SETMASK, &none, nullptr);
    execve(setup.arguments[0], setup.arguments.data(), environ);
    return {Step::Program, errno};
}

/// The child's number, or -1 and errno. Not clone3(), which sandboxes of containers do not know.
pid_t give_birth(const ChildSetup& setup, bool has_user_namespace) {
    const unsigned long flags = static_cast<unsigned long>(SIGCHLD) | CLONE_NEWPID | CLONE_NEWNS |
                                (has_user_namespace ? CLONE_NEWUSER : 0UL);
    const SignalsBlocked blocked;
    const auto pid = static_cast<pid_t>(syscall(SYS_clone, flags, nullptr, nullptr, nullptr, 0UL));
    if (pid == 0) {
        const Failure failure = become_first_process(setup, has_user_namespace);
        const ssize_t written = write(setup.report, &failure, sizeof failure);
        static_cast<void>(written);
        _exit(kFailed);
    }
    return pid;
}

/// Settings of the kernel that forbid it; empty: none that we know.
std::string forbidding_setting() {
    struct Setting {
        const char* path;
        const char* name;
        char forbids;
    };
    constexpr std::array<Setting, 5> kSettings = {{
        {"/proc/sys/user/max_pid_namespaces", "user.max_pid_namespaces", '0'},
        {"/proc/sys/user/max_mnt_namespaces", "user.max_mnt_namespaces", '0'},
        {"/proc/sys/user/max_user_namespaces", "user.max_user_namespaces", '0'},
        {"/proc/sys/kernel/unprivileged_userns_clone", "kernel.unprivileged_userns_clone", '0'},
        {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
         "kernel.apparmor_restrict_unprivileged_userns", '1'},
    }};
    for (const Setting& setting : kSettings) {
        const std::string text = read_whole(setting.path).value_or("");
        if (text == std::string{setting.forbids} || text == std::string{setting.forbids, '\n'}) {
            return fmt::format("{} is {}", setting.name, setting.forbids);
        }
    }
    return {};
}

Error error_of(const Failure& failure, const ProgramSpec& spec) {
    switch (failure.step) {
        case Step::Program:
            return system_error(failure.error, fmt::format("cannot start {}", spec.command[0]));
        case Step::Session:
        case Step::Descriptors:
            return system_error(failure.error, "cannot prepare the first process of a namespace");
        case Step::Proc:
            return system_error(
                failure.error,
                "a PID namespace cannot have a /proc of its own here; where a container hides "
                "parts of /proc, start it without that (docker: --security-opt "
                "systempaths=unconfined, Kubernetes: procMount: Unmasked)");
        case Step::Birth:
        case Step::Users:
            break;
    }
    const std::string setting = forbidding_setting();
    return system_error(failure.error,
                        fmt::format("no PID namespace can be made: {}",
                                    setting.empty() ? "neither CAP_SYS_ADMIN nor a user namespace "
                                                      "is to be had"
                                                    : setting));
}

/// Waits until the program is executed, as long as its load takes; returns nothing then.
std::optional<Failure> read_failure(const UniqueFd& report) {
    Failure failure;
    ssize_t got = 0;
    do {
        got = read(report.get(), &failure, sizeof failure);
    } while (got < 0 && errno == EINTR);
    return got == static_cast<ssize_t>(sizeof failure) ? std::optional(failure) : std::nullopt;
}

void reap(pid_t pid) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {}
}

/// The first process, executing the program or dead and not reaped; or why there is none.
Result<pid_t> start(ChildSetup& setup, const ProgramSpec& spec) {
    if (!open_pidfd(getpid()).is_open()) {
        return system_error(errno, "a PID namespace needs pidfd (Linux 5.3)");
    }
    setup.user_map = fmt::format("{0} {0} 1", geteuid());
    setup.group_map = fmt::format("{0} {0} 1", getegid());
    for (const bool has_user_namespace : {false, true}) {
        std::array<int, 2> ends{};
        if (pipe2(ends.data(), O_CLOEXEC) != 0) {
            return system_error(errno, "cannot start the keeper");
        }
        const UniqueFd read_end(ends[0]);
        UniqueFd write_end(ends[1]);
        setup.report = write_end.get();
        const pid_t pid = give_birth(setup, has_user_namespace);
        const int error = errno;
        write_end.reset();
        if (pid < 0) {
            if (error == EPERM && !has_user_namespace) {
                continue;  // Only the privileged may do without.
            }
            return error_of({Step::Birth, error}, spec);
        }
        if (const std::optional<Failure> failure = read_failure(read_end)) {
            reap(pid);
            return error_of(*failure, spec);
        }
        return pid;
    }
    return Error{ErrorCode::System, "no PID namespace can be made"};
}

}  // namespace

Result<StartedProgram> start_first_process(const ProgramSpec& spec, int outer_descriptors) {
    DDP_CHECK(!spec.command.empty());
    int highest = std::max(2, outer_descriptors);
    for (const FdMapping& mapping : spec.fds) {
        highest = std::max(highest, mapping.to);
    }
    const Result<Copies> copies = copy_above(spec.fds, highest);
    if (copies.has_error()) {
        return copies.error();
    }
    ChildSetup setup;
    setup.outer_descriptors = outer_descriptors;
    setup.fds = copies->fds;
    for (const std::string& argument : spec.command) {
        setup.arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    setup.arguments.push_back(nullptr);
    const Result<pid_t> pid = start(setup, spec);
    if (pid.has_error()) {
        return pid.error();
    }
    return StartedProgram{.pid = *pid, .pidfd = open_pidfd(*pid)};
}

Result<void> try_first_process() {
    ChildSetup setup;
    const Result<pid_t> pid = start(setup, ProgramSpec{});
    if (pid.has_error()) {
        return pid.error();
    }
    reap(*pid);
    return {};
}

}  // namespace ddprun::agent
