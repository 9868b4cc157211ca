#include "agent/keeper/worker_spawner.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <map>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/process/v2/posix/fork_and_forget_launcher.hpp>
#include <boost/process/v2/process.hpp>

#include "agent/process/children.hpp"

namespace ddprun::agent {

namespace {

namespace process = boost::process::v2;

boost::system::error_code system_code(int errno_value) {
    return {errno_value, boost::system::system_category()};
}

constexpr int kExecFailed = 127;
constexpr int kNoReport = 125;
constexpr unsigned int kCloseRangeCloexec = 4;  // CLOSE_RANGE_CLOEXEC, unknown to old headers

/// All signals blocked while it lives: between fork and restore() a child must neither lose a
/// signal that is meant for it nor run our handlers.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

void close_on_exec_above_standard() {
    if (syscall(SYS_close_range, 3U, ~0U, kCloseRangeCloexec) == 0) {
        return;
    }
    for (const int fd : open_descriptors()) {
        if (fd > 2) {
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        }
    }
}

/// What Boost.Process calls before the fork (on_setup) and in the child.
struct ChildSetup {
    const Containment& containment;
    const SavedProcessState& saved_state;
    int out;
    int err;
    int exec_status;

    template <typename Launcher, typename Path>
    boost::system::error_code on_setup(Launcher& launcher, const Path& /*executable*/,
                                       const char* const*& /*argv*/) const {
        launcher.fd_whitelist.push_back(exec_status);  // Close-on-exec; to be open until then.
        return {};
    }

    template <typename Launcher, typename Path>
    boost::system::error_code on_exec_setup(Launcher& /*launcher*/, const Path& /*executable*/,
                                            const char* const*& /*argv*/) const {
        int error = containment.enter();
        if (error == 0 && (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)) {
            error = errno;
        }
        if (error == 0) {
            close_on_exec_above_standard();
            error = saved_state.restore();
        }
        errno = error;  // The launcher reports errno, not what we return.
        return error == 0 ? boost::system::error_code() : system_code(error);
    }

    /// Never called: Boost 1.81 asks for this signature, and calls the next one if it is there.
    template <typename Launcher, typename Path>
    void on_exec_error(Launcher&, const boost::system::error_code&, const Path&,
                       const char* const*&, const boost::system::error_code&) const;

    template <typename Launcher, typename Path>
    void on_exec_error(Launcher& /*launcher*/, const Path& /*executable*/,
                       const char* const*& /*argv*/, const boost::system::error_code& error) const {
        const int value = error.value();
        const ssize_t written = write(exec_status, &value, sizeof value);
        // The launcher would call exit() next, and that would run what belongs to the parent.
        _exit(written == static_cast<ssize_t>(sizeof value) ? kExecFailed : kNoReport);
    }
};

std::string_view search_path_of(const std::vector<std::string>& environment) {
    constexpr std::string_view kKey = "PATH=";
    for (const std::string& variable : environment) {
        if (std::string_view(variable).substr(0, kKey.size()) == kKey) {
            return std::string_view(variable).substr(kKey.size());
        }
    }
    return "/usr/local/bin:/usr/bin:/bin";
}

std::vector<const char*> pointers_to(const std::vector<std::string>& strings) {
    std::vector<const char*> pointers;
    pointers.reserve(strings.size() + 1);
    for (const std::string& string : strings) {
        pointers.push_back(string.c_str());
    }
    pointers.push_back(nullptr);
    return pointers;
}

}  // namespace

WorkerSpawner::WorkerSpawner(const Containment& containment, SavedProcessState saved_state)
    : containment_(containment), saved_state_(saved_state) {}

boost::system::result<SpawnedWorker> WorkerSpawner::spawn(const KeeperSpawn& spawn,
                                                          const UniqueFd& out,
                                                          const UniqueFd& err) {
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

    const std::vector<const char*> envp = pointers_to(environment);
    std::vector<const char*> argv = pointers_to(spawn.command);
    // Unlike the default launcher this one does not wait for the exec: eight of them overlap.
    process::posix::fork_and_forget_launcher launcher;
    launcher.env = envp.data();
    const ChildSetup setup{containment_, saved_state_, out.get(), err.get(), status_write.get()};
    boost::system::error_code error;
    const SignalsBlocked blocked;
    // Boost.Process remakes the context's descriptors in the child: this one has none by then.
    boost::asio::io_context context(1);
    try {
        launcher(context.get_executor(), error, *program, argv.data(), setup).detach();
    } catch (const std::exception&) {
        if (launcher.pid == 0) {
            _exit(kNoReport);  // In the child, which must never become a second keeper.
        }
        // After the fork where the kernel has no pidfd, which only Boost's handle needs.
    }
    if (launcher.pid <= 0) {
        return error ? error : system_code(EAGAIN);
    }
    return SpawnedWorker{launcher.pid, std::move(status_read)};
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
    std::string_view rest = search_path;
    for (;;) {
        const std::size_t colon = rest.find(':');
        const std::string_view folder = rest.substr(0, colon);
        const std::string path = (folder.empty() ? "." : std::string(folder)) + "/" + name;
        struct stat status {};
        if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
            if (access(path.c_str(), X_OK) == 0) {
                return path;
            }
            error = EACCES;
        }
        if (colon == std::string_view::npos) {
            return system_code(error);
        }
        rest.remove_prefix(colon + 1);
    }
}

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& overlay) {
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
