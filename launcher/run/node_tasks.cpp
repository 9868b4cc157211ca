#include "launcher/run/node_tasks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/os/unix_address.hpp"
#include "base/os/visit_folder.hpp"
#include "launcher/run/state_folder.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::launcher {

namespace {

using TaskClock = std::chrono::steady_clock;

constexpr std::string_view kNamePrefix = "tasks-";

Result<UniqueFd> unix_socket(int type) {
    UniqueFd made(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    if (!made.is_open()) {
        return ddprun::system_error(errno, "a socket for the tasks of this node");
    }
    return made;
}

int left_until(TaskClock::time_point deadline) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - TaskClock::now()).count();
    return static_cast<int>(std::max<decltype(left)>(left, 0));
}

/// False once `deadline` has passed.
bool wait_readable(int fd, TaskClock::time_point deadline) {
    for (;;) {
        pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
        const int ready = ::poll(&waiting, 1, left_until(deadline));
        if (ready > 0) {
            return true;
        }
        if (ready == 0) {
            return false;
        }
    }
}

/// Connected, or no socket while no process listens there.
Result<UniqueFd> try_connect(const std::string& path) {
    const Result<UnixAddress> address = UnixAddress::of(path);
    if (!address) {
        return address.error();
    }
    Result<UniqueFd> first = unix_socket(SOCK_STREAM);
    if (!first) {
        return first;
    }
    while (::connect(first->get(), address->get(), address->size()) != 0) {
        if (errno == ENOENT || errno == ECONNREFUSED) {
            return UniqueFd();
        }
        if (errno != EINTR) {
            return ddprun::system_error(errno, fmt::format("cannot connect to {}", path));
        }
    }
    return first;
}

Result<UniqueFd> watch_for_names(const std::string& folder) {
    UniqueFd names(::inotify_init1(IN_CLOEXEC));
    if (!names.is_open() ||
        ::inotify_add_watch(names.get(), folder.c_str(), IN_MOVED_TO | IN_ONLYDIR) < 0) {
        return ddprun::system_error(
            errno, fmt::format("cannot watch {} (fs.inotify.max_user_instances is the usual "
                               "bound); start one ddprun on each node",
                               folder));
    }
    return names;
}

/// Whether no process listens there any more. A process that listens is not disturbed: a socket of
/// another type is refused before it is queued.
bool is_left_behind(const std::string& path) {
    const Result<UnixAddress> address = UnixAddress::of(path);
    const Result<UniqueFd> probe = unix_socket(SOCK_DGRAM);
    return address && probe && ::connect(probe->get(), address->get(), address->size()) != 0 &&
           errno == ECONNREFUSED;
}

void remove_left_behind(const std::filesystem::path& folder) {
    visit_folder(folder, [](const std::filesystem::path& entry) {
        if (entry.filename().string().starts_with(kNamePrefix) && is_left_behind(entry.string())) {
            ::unlink(entry.c_str());
        }
    });
}

/// Held while names come and go there.
Result<UniqueFd> lock_folder(const std::filesystem::path& folder) {
    UniqueFd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int locked = -1;
    do {
        locked = held.is_open() ? ::flock(held.get(), LOCK_EX) : -1;
    } while (locked != 0 && held.is_open() && errno == EINTR);
    if (locked != 0) {
        return ddprun::system_error(errno, fmt::format("cannot lock {}", folder.string()));
    }
    return held;
}

}  // namespace

bool has_other_tasks(const LaunchPlan& plan) {
    return plan.takes_place && plan.place->tasks_here > 1;
}

Result<std::string> node_tasks_path(const Place& place) {
    Result<std::string> folder = open_state_folder();
    if (!folder) {
        return folder;
    }
    const std::string name = fmt::format("{}|{}|{}", place.job, place.tasks_id, place.node);
    return fmt::format("{}/{}{:016x}", *folder, kNamePrefix, XXH64(name.data(), name.size(), 0));
}

FirstTask::FirstTask(std::string path, UniqueFd listener)
    : path_(std::move(path)), listener_(std::move(listener)) {}

FirstTask::~FirstTask() {
    if (listener_.is_open()) {
        ::unlink(path_.c_str());
    }
}

Result<FirstTask> FirstTask::open(std::string path) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    const Result<UniqueFd> lock = lock_folder(folder);
    if (!lock) {
        return lock.error();
    }
    remove_left_behind(folder);
    // Under its name it listens already: who sees it can connect.
    const std::string unnamed = path + ".new";
    const Result<UnixAddress> address = UnixAddress::of(unnamed);
    if (!address) {
        return address.error();
    }
    Result<UniqueFd> listener = unix_socket(SOCK_STREAM);
    if (!listener) {
        return listener.error();
    }
    ::unlink(unnamed.c_str());
    if (::bind(listener->get(), address->get(), address->size()) != 0 ||
        ::listen(listener->get(), SOMAXCONN) != 0 ||
        std::rename(unnamed.c_str(), path.c_str()) != 0) {
        return ddprun::system_error(errno, fmt::format("cannot listen at {}", path));
    }
    return FirstTask(std::move(path), std::move(*listener));
}

void FirstTask::end(int exit_code, int others, Milliseconds patience) {
    const TaskClock::time_point deadline = TaskClock::now() + patience;
    const auto byte = static_cast<unsigned char>(exit_code);
    for (int told = 0; told < others && wait_readable(listener_.get(), deadline);) {
        const UniqueFd other(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!other.is_open()) {
            continue;
        }
        // One that was killed meanwhile has heard enough.
        told += ::send(other.get(), &byte, 1, MSG_NOSIGNAL) >= 0 || errno == EPIPE ? 1 : 0;
    }
}

Result<int> follow_first_task(const std::string& path, Milliseconds patience,
                              Milliseconds say_after, void (*say_waiting)()) {
    const Result<UniqueFd> names =
        watch_for_names(std::filesystem::path(path).parent_path().string());
    if (!names) {
        return names.error();
    }
    const TaskClock::time_point begun = TaskClock::now();
    TaskClock::time_point deadline = begun + say_after;
    Result<UniqueFd> first = try_connect(path);
    while (first && !first->is_open()) {
        if (wait_readable(names->get(), deadline)) {
            std::array<char, 4096> names_read{};
            [[maybe_unused]] const ssize_t count =
                ::read(names->get(), names_read.data(), names_read.size());
        } else if (deadline < begun + patience) {
            say_waiting();
            deadline = begun + patience;
        } else {
            return Error{ErrorCode::TimedOut,
                         fmt::format("the first ddprun of this node has not come within {} s",
                                     std::chrono::duration<double>(patience).count())};
        }
        first = try_connect(path);
    }
    if (!first) {
        return first.error();
    }
    unsigned char code = 0;
    ssize_t count = 0;
    do {
        count = ::read(first->get(), &code, 1);
    } while (count < 0 && errno == EINTR);
    return count == 1 ? code : kExitSignalBase + SIGKILL;
}

}  // namespace ddprun::launcher
