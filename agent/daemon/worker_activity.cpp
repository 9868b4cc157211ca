#include "agent/daemon/worker_activity.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"
#include "rendezvous/store/core/admission.hpp"

namespace ddprun::agent {

using rdzv::Activity;

namespace {

// With no descriptor to wait for, as time.sleep() of Python 3.10 and older calls select(), they
// wait for a time alone.
constexpr std::initializer_list<long> kSelects = {
    SYS_pselect6,
#ifdef SYS_select
    SYS_select,
#endif
};
constexpr std::initializer_list<long> kPolls = {
    SYS_ppoll,
#ifdef SYS_poll
    SYS_poll,
#endif
};

bool is_one_of(long number, std::initializer_list<long> calls) {
    return std::find(calls.begin(), calls.end(), number) != calls.end();
}

/// A line of /proc/PID/syscall.
struct Call {
    long number = -1;
    std::uint64_t first = 0;   ///< argument
    std::uint64_t second = 0;  ///< argument
};

std::optional<Call> call_in(const std::string& folder) {
    const std::optional<std::string> text = read_whole(folder + "/syscall");
    if (!text) {
        return std::nullopt;
    }
    std::istringstream words(*text);
    Call call;
    words >> call.number >> std::hex >> call.first >> call.second;
    return call;
}

bool is_sleep(const Call& call) {
    return call.number == SYS_nanosleep || call.number == SYS_clock_nanosleep ||
           (is_one_of(call.number, kSelects) && call.first == 0) ||
           (is_one_of(call.number, kPolls) && call.second == 0);
}

/// The one descriptor that the call waits for; -1: it is not one, or this user may not look.
int awaited_descriptor(int pid, const Call& call) {
    if (is_one_of(call.number, {SYS_read, SYS_recvfrom, SYS_recvmsg})) {
        return static_cast<int>(call.first);
    }
    pollfd polled{.fd = -1, .events = 0, .revents = 0};
    if (is_one_of(call.number, kPolls) && call.second == 1) {
        const iovec here{.iov_base = &polled, .iov_len = sizeof polled};
        const iovec there{.iov_base = reinterpret_cast<void*>(call.first),
                          .iov_len = sizeof polled};
        if (::process_vm_readv(pid, &here, 1, &there, 1, 0) != sizeof polled) {
            return -1;
        }
    }
    return polled.fd;
}

bool is_socket(int pid, int descriptor) {
    std::error_code failure;
    const auto target =
        std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", pid, descriptor), failure);
    return target.native().starts_with("socket:");
}

/// Returns the peer's port of a connected socket; 0: it is none, or this kernel does not report it.
/// Only sockets are copied: the end of another copy may wait for a file system.
int peer_port(int pid, int descriptor) {
#ifdef SYS_pidfd_getfd
    const UniqueFd process = is_socket(pid, descriptor) ? open_pidfd(pid) : UniqueFd();
    if (process.is_open()) {
        const UniqueFd copy(
            static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), descriptor, 0)));
        sockaddr_storage peer{};
        socklen_t size = sizeof peer;
        if (copy.is_open() && ::getpeername(copy.get(), rdzv::generic(peer), &size) == 0) {
            return rdzv::port_of(peer);
        }
    }
#endif
    return 0;
}

Activity asleep(int pid, int store_port, const std::string& folder) {
    const std::optional<Call> call = call_in(folder);
    if (!call) {
        // This user may not read the call: the name of the kernel's function shows most sleeps.
        const std::string function = read_whole(folder + "/wchan").value_or("");
        return function.find("nanosleep") != std::string::npos ? Activity::Sleeps : Activity::Waits;
    }
    if (is_sleep(*call)) {
        return Activity::Sleeps;
    }
    const bool is_for_store =
        store_port != 0 && peer_port(pid, awaited_descriptor(pid, *call)) == store_port;
    return is_for_store ? Activity::WaitsForStore : Activity::Waits;
}

}  // namespace

Activity activity_of_process(int pid, int store_port, const std::string& root) {
    const std::string folder = fmt::format("{}/proc/{}/task/{}", root, pid, pid);
    const std::string stat = read_whole(folder + "/stat").value_or("");
    // The name, in brackets, may have any character.
    const std::size_t name_end = stat.rfind(") ");
    switch (name_end == std::string::npos ? '?' : stat.at(name_end + 2)) {
        case 'R':
            return Activity::Computes;
        case 'D':
            return Activity::Blocked;
        case 'T':
        case 't':
            return Activity::Stopped;
        case 'S':
            return asleep(pid, store_port, folder);
        default:
            return Activity::Unknown;
    }
}

}  // namespace ddprun::agent
