// The one place where Boost.Process is used: fork, our hook, exec. Its waiting is not: its async
// wait blocks in waitpid(), and it needs a pidfd.

#include "base/os/start_program.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

/// Boost.Process calls it by this name, which the GNU C library has from 2.34 on: released programs
/// are built for older ones.
extern "C" int close_range(unsigned int first, unsigned int last, int flags) noexcept {
    return static_cast<int>(syscall(SYS_close_range, first, last, flags));
}

#include <boost/asio/io_context.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/system/system_error.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "base/os/signals_blocked.hpp"

namespace ddprun {

namespace {

namespace process = boost::process::v2;
using Launcher = process::posix::default_launcher;
using Path = process::filesystem::path;
using boost::system::error_code;

constexpr int kExecFailed = 127;
constexpr int kSignalMost = 64;

error_code last_error() {
    return {errno, boost::system::system_category()};
}

/// Hooks that the launcher calls in the parent before the fork, and in the child after it.
class Hook {
public:
    /// `fds`: the sources are above every target, so that no mapping overwrites another's source.
    Hook(const ProgramSpec& spec, const std::vector<FdMapping>& fds, int highest)
        : spec_(spec), fds_(fds), highest_(highest) {}

    error_code on_setup(Launcher& launcher, const Path&, const char* const*&) const {
        // It would close the sources before we can map them: closing is ours, by exec.
        for (int fd = 3; fd <= highest_; ++fd) {
            launcher.fd_whitelist.push_back(fd);
        }
        return {};
    }

    error_code on_exec_setup(Launcher& launcher, const Path&, const char* const*&) const {
        // The pipe by which the parent learns of a failed exec may have a target's number only if
        // another thread has closed that number this very moment.
        const int report = launcher.fd_whitelist.back();
        if (spec_.has_own_session && setsid() < 0) {
            return last_error();
        }
        if (spec_.dies_with_us && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent_)) {
            return last_error();
        }
        close_on_exec_from(3);
        for (const FdMapping& mapping : fds_) {
            if (mapping.to == report) {
                errno = EAGAIN;
                return last_error();
            }
            if (dup2(mapping.from, mapping.to) < 0) {
                return last_error();
            }
        }
        for (int signal = 1; signal <= kSignalMost; ++signal) {
            struct sigaction action {};
            action.sa_handler = SIG_DFL;
            (void)sigaction(signal, &action, nullptr);  // Some cannot be changed, and are default.
        }
        sigset_t none;
        sigemptyset(&none);
        (void)pthread_sigmask(SIG_SETMASK, &none, nullptr);
        return {};
    }

    /// Else the launcher calls exit(), which would run what this process has registered.
    void on_exec_error(Launcher&, const Path&, const char* const*&, const error_code&) const {
        _exit(kExecFailed);
    }

private:
    const ProgramSpec& spec_;
    const std::vector<FdMapping>& fds_;
    int highest_;
    pid_t parent_ = getpid();
};

/// Runs the program by env, which given no variable changes nothing of the environment; a shell
/// would (PWD, _). If env does not exist, or would take the path for a variable, the program is
/// executed at once, and start_program() waits for as long as that takes.
std::vector<std::string> command_of(const ProgramSpec& spec) {
    constexpr const char* kEnv = "/usr/bin/env";
    const std::string& path = spec.command.front();
    if (!spec.may_be_slow || path.find('=') != std::string::npos || access(kEnv, X_OK) != 0) {
        return spec.command;
    }
    std::vector<std::string> command = {kEnv};
    command.insert(command.end(), spec.command.begin(), spec.command.end());
    return command;
}

}  // namespace

Result<StartedProgram> start_program(const ProgramSpec& spec) {
    DDP_CHECK(!spec.command.empty());
    int highest = 2;
    for (const FdMapping& mapping : spec.fds) {
        highest = std::max(highest, mapping.to);
    }
    const Result<Copies> copies = copy_above(spec.fds, highest);
    if (copies.has_error()) {
        return copies.error();
    }
    const std::vector<std::string> command = command_of(spec);
    const std::vector<std::string> arguments(command.begin() + 1, command.end());
    Launcher launcher;
    error_code failure;
    try {
        // A loop of its own: the child may touch nothing of a loop that runs.
        boost::asio::io_context nobodys(1);
        const SignalsBlocked blocked;
        auto started = launcher(nobodys.get_executor(), failure, Path(command[0]), arguments,
                                Hook(spec, copies->fds, highest));
        started.detach();  // The caller owns it now. tidy: allow detach
    } catch (const boost::system::system_error& error) {
        // A process of theirs has a pidfd or cannot be made; ours need not have one.
        failure = launcher.pid > 0 ? error_code() : error.code();
    }
    if (failure) {
        while (launcher.pid > 0 && waitpid(launcher.pid, nullptr, 0) < 0 && errno == EINTR) {}
        return system_error(failure.value(), fmt::format("cannot start {}", spec.command[0]));
    }
    return StartedProgram{.pid = launcher.pid, .pidfd = open_pidfd(launcher.pid)};
}

}  // namespace ddprun
