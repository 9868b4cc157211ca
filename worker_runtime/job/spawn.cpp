#include "worker_runtime/job/spawn.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/instant.hpp"
#include "base/os/read_files.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"
#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/env/environment.hpp"

namespace ddprun {

namespace {

/// "CALL PID FD": which call of spawn() in the process PID has started this one, and its descriptor
/// of the file for what this one throws.
constexpr const char* kSpawnVariable = "DDPRUN_SPAWN";

/// The first byte of that file once a worker has come to its call.
constexpr char kArrived = '!';

struct Origin {
    int call = 0;
    int parent = 0;
    int file = -1;
};

std::optional<Origin> origin_of_this_process() {
    const char* const text = std::getenv(kSpawnVariable);
    Origin origin;
    if (text == nullptr ||
        std::sscanf(text, "%d %d %d", &origin.call, &origin.parent, &origin.file) != 3) {
        return std::nullopt;
    }
    return origin;
}

/// Runs `body` as all that is left of this process. An exception of `body` is a line on
/// stderr, and stands in `file`, if there is one.
[[noreturn]] void run_and_exit(const std::function<int()>& body, std::FILE* file) {
    int code = 1;
    try {
        code = body();
    } catch (const std::exception& failure) {
        const std::string text = worker::first_line(failure);
        const char* const rank = std::getenv("RANK");
        fmt::print(stderr, "worker: rank {}: {}\n", rank == nullptr ? "0" : rank, text);
        if (file != nullptr) {
            fmt::print(file, "{}", text);
        }
    }
    if (file != nullptr) {
        (void)std::fclose(file);
    }
    std::exit(code);
}

[[noreturn]] void become_worker(const Origin& origin, const std::function<int()>& body) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != origin.parent) {
        std::_Exit(1);  // it has died before it could be told to
    }
    std::FILE* const file =
        std::fopen(fmt::format("/proc/{}/fd/{}", origin.parent, origin.file).c_str(), "we");
    if (file == nullptr) {
        fmt::print(stderr, "spawn: a worker cannot open the file for its errors in process {}\n",
                   origin.parent);
        std::_Exit(1);
    }
    (void)std::fputc(kArrived, file);
    (void)std::fflush(file);
    run_and_exit(body, file);
}

std::vector<std::string> own_command() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::vector<std::string> words;
    for (std::string word; std::getline(file, word, '\0');) {
        words.push_back(word);
    }
    return words;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (std::string& word : words) {
        pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    return pointers;
}

/// The store of the spawned world, on loopback alone.
Result<c10::intrusive_ptr<c10d::TCPStore>> serve_store() {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (!socket.is_open() || ::bind(socket.get(), generic, size) != 0 ||
        ::listen(socket.get(), SOMAXCONN) != 0 ||
        ::getsockname(socket.get(), generic, &size) != 0) {
        return system_error(errno, "spawn: cannot listen on 127.0.0.1 for the workers' store");
    }
    try {
        c10d::TCPStoreOptions options;
        options.port = ntohs(address.sin_port);
        options.isServer = true;
        options.waitWorkers = false;
        options.masterListenFd = socket.release();
        return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    } catch (const std::exception& failure) {
        return Error{ErrorCode::System,
                     "spawn: the workers' store failed: " + worker::first_line(failure)};
    }
}

/// Cores that this process may run on.
std::size_t own_cores() {
    cpu_set_t cores;
    return ::sched_getaffinity(0, sizeof(cores), &cores) == 0
               ? static_cast<std::size_t>(CPU_COUNT(&cores))
               : 1;
}

/// The workers of one call, as children of this process.
class Children {
public:
    explicit Children(int count) : children_(static_cast<std::size_t>(count)) {}
    ~Children() {
        signal_all(SIGKILL);
        for (const Child& child : children_) {
            if (child.pid > 0) {
                (void)::waitpid(child.pid, nullptr, 0);
            }
        }
    }
    Children(const Children&) = delete;
    Children& operator=(const Children&) = delete;

    [[nodiscard]] Result<void> start(int call, std::uint16_t store_port) {
        std::vector<std::string> command = own_command();
        const std::vector<char*> argv = pointers_to(command);
        for (std::size_t rank = 0; rank < children_.size(); ++rank) {
            Child& child = children_[rank];
            child.file = UniqueFd(::memfd_create("ddprun-spawn", MFD_CLOEXEC));
            if (!child.file.is_open()) {
                return system_error(errno, "spawn: no file for what a worker throws");
            }
            std::vector<std::string> environment = environment_of(rank, call, store_port);
            const std::vector<char*> envp = pointers_to(environment);
            const int error = ::posix_spawn(&child.pid, "/proc/self/exe", nullptr, nullptr,
                                            argv.data(), envp.data());
            if (error != 0) {
                child.pid = 0;
                return system_error(error, fmt::format("spawn: cannot start {} as rank {} of {}",
                                                       command.empty() ? "" : command.front(), rank,
                                                       children_.size()));
            }
            child.pidfd = open_pidfd(child.pid);
            if (!child.pidfd.is_open()) {
                return system_error(errno,
                                    "spawn: cannot watch a worker (Linux 5.3 is needed); start the "
                                    "program with ddprun or torchrun");
            }
        }
        return {};
    }

    /// Until all have ended, with the first one's error.
    [[nodiscard]] Result<void> wait(const worker::RuntimeLimits& limits) {
        std::string failure;
        std::optional<Instant> kill_at;
        while (std::any_of(children_.begin(), children_.end(),
                           [](const Child& child) { return child.pid > 0; })) {
            if (!poll_until(kill_at)) {
                signal_all(SIGKILL);
                kill_at.reset();
                continue;
            }
            const std::string how = reap_ended();
            if (failure.empty() && !how.empty()) {
                failure = how;
                signal_all(SIGTERM);
                kill_at = std::chrono::steady_clock::now() + limits.spawn_stop_grace;
            }
        }
        if (failure.empty()) {
            return {};
        }
        return Error{ErrorCode::System, fmt::format("spawn: {}; the others were ended", failure)};
    }

private:
    struct Child {
        pid_t pid = 0;  ///< 0: not started, or reaped
        UniqueFd file;
        UniqueFd pidfd;
    };

    void signal_all(int number) const {
        for (const Child& child : children_) {
            // Not reaped, so its number is its own.
            if (child.pid > 0) {
                (void)::kill(child.pid, number);
            }
        }
    }

    /// This process's environment, with a place like torchrun's.
    [[nodiscard]] std::vector<std::string> environment_of(std::size_t rank, int call,
                                                          std::uint16_t store_port) const {
        const std::size_t count = children_.size();
        std::vector<std::string> all;
        for (char** variable = environ; *variable != nullptr; ++variable) {
            all.emplace_back(*variable);
        }
        if (std::getenv("OMP_NUM_THREADS") == nullptr) {
            all.push_back(
                fmt::format("OMP_NUM_THREADS={}", std::max<std::size_t>(1, own_cores() / count)));
        }
        all.insert(all.end(),
                   {fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", count),
                    fmt::format("LOCAL_RANK={}", rank), fmt::format("LOCAL_WORLD_SIZE={}", count),
                    "MASTER_ADDR=127.0.0.1", fmt::format("MASTER_PORT={}", store_port),
                    fmt::format("{}={} {} {}", kSpawnVariable, call, ::getpid(),
                                children_[rank].file.get())});
        return all;
    }

    /// False: it is `deadline`, and none has ended.
    bool poll_until(std::optional<Instant> deadline) const {
        std::vector<pollfd> watched;
        for (const Child& child : children_) {
            if (child.pid > 0) {
                watched.push_back({.fd = child.pidfd.get(), .events = POLLIN, .revents = 0});
            }
        }
        int count = 0;
        do {
            int left = -1;
            if (deadline) {
                const auto time =
                    std::chrono::ceil<Milliseconds>(*deadline - std::chrono::steady_clock::now());
                left = static_cast<int>(std::max<std::int64_t>(0, time.count()));
            }
            count = ::poll(watched.data(), watched.size(), left);
        } while (count < 0 && errno == EINTR);
        return count > 0;
    }

    /// How one of those that have ended has failed; empty: none has. A worker that a signal has
    /// killed is preferred: others may have failed of its end.
    std::string reap_ended() {
        std::string failed;
        std::string killed;
        for (std::size_t rank = 0; rank < children_.size(); ++rank) {
            Child& child = children_[rank];
            siginfo_t end{};
            if (child.pid == 0 ||
                ::waitid(P_PID, static_cast<id_t>(child.pid), &end, WEXITED | WNOHANG) != 0 ||
                end.si_pid == 0) {
                continue;
            }
            const std::string how = how_ended(child, end);
            child.pid = 0;
            std::string& place = end.si_code == CLD_EXITED ? failed : killed;
            if (!how.empty() && place.empty()) {
                place = fmt::format("rank {} of {} {}", rank, children_.size(), how);
            }
        }
        return killed.empty() ? failed : killed;
    }

    /// Empty: as it should.
    static std::string how_ended(const Child& child, const siginfo_t& end) {
        const std::string said =
            read_part(child.file.get(), worker::RuntimeLimits().spawn_error_bytes_max);
        const std::string thrown = said.size() > 1 ? ": " + said.substr(1) : "";
        if (!has_succeeded(end)) {
            return fmt::format("(pid {}) {}{}", child.pid, end_text(end), thrown);
        }
        if (!said.starts_with(kArrived)) {
            return fmt::format(
                "(pid {}) ended before it came to spawn(): with the same arguments the program "
                "must come to the same call again",
                child.pid);
        }
        return "";
    }

    std::vector<Child> children_;
};

}  // namespace

Result<void> spawn(int count, const std::function<int()>& body) {
    static int calls = 0;
    const int call = ++calls;
    const std::optional<Origin> origin = origin_of_this_process();
    if (origin && call < origin->call) {
        return {};
    }
    if (origin && call == origin->call) {
        become_worker(*origin, body);
    }
    const Result<worker::WorkerEnvironment> place = worker::read_environment();
    if (!place) {
        return place.error();
    }
    if (place->store.has_value()) {
        run_and_exit(body, nullptr);
    }
    const worker::RuntimeLimits limits;
    if (count < 1 || count > limits.spawn_workers_max) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format("spawn: {} workers are not from 1 to {}", count, limits.spawn_workers_max)};
    }
    // Otherwise the workers would print this process's buffered output again.
    (void)std::fflush(nullptr);
    const auto store = serve_store();
    if (!store) {
        return store.error();
    }
    Children children(count);
    if (const Result<void> started = children.start(call, (*store)->getPort()); !started) {
        return started;
    }
    return children.wait(limits);
}

}  // namespace ddprun
