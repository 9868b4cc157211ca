#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"
#include "base/signal_name.hpp"
#include "base/whole_number.hpp"

namespace ddprun {

namespace {

constexpr unsigned int kCloseRangeCloexec = 4;  // CLOSE_RANGE_CLOEXEC, unknown to old headers

Result<std::string> own_path() {
    std::array<char, PATH_MAX> buffer;
    const ssize_t length = readlink("/proc/self/exe", buffer.data(), buffer.size());
    if (length <= 0) {
        return system_error(errno, "cannot read /proc/self/exe");
    }
    return std::string(buffer.data(), static_cast<std::size_t>(length));
}

/// One entry of a folder as the kernel lists it; its name follows, zero-terminated.
struct ListedEntry {
    std::uint64_t inode;
    std::int64_t offset;
    std::uint16_t length;
    std::uint8_t type;
};
constexpr std::size_t kNameAt = offsetof(ListedEntry, type) + 1;

/// `entry` is one that getdents64() has written.
void close_on_exec(const char* entry, int first) {
    const std::string_view name(entry + kNameAt);
    const std::optional<int> fd = whole_number<int>(name);
    if (fd && *fd >= first) {
        (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    }
}

}  // namespace

Result<Copies> copy_above(const std::vector<FdMapping>& fds, int highest) {
    Copies copies;
    for (const FdMapping& mapping : fds) {
        UniqueFd copy(fcntl(mapping.from, F_DUPFD_CLOEXEC, highest + 1));
        if (!copy.is_open()) {
            return system_error(errno, fmt::format("cannot pass on descriptor {}", mapping.from));
        }
        copies.fds.push_back(FdMapping{.from = copy.get(), .to = mapping.to});
        copies.kept.push_back(std::move(copy));
    }
    for (int fd = 3; fd <= highest; ++fd) {
        if (fcntl(fd, F_GETFD) < 0 && !copies.kept.empty()) {
            copies.kept.emplace_back(fcntl(copies.kept.front().get(), F_DUPFD_CLOEXEC, fd));
        }
    }
    return copies;
}

std::string end_text(const siginfo_t& end) {
    return end.si_code == CLD_EXITED ? fmt::format("exited with code {}", end.si_status)
                                     : "was killed by " + signal_name(end.si_status);
}

UniqueFd open_pidfd(int pid) {
    // The kernel makes every pidfd close-on-exec.
    return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

bool has_ended(const UniqueFd& pidfd) {
    pollfd ended{pidfd.get(), POLLIN, 0};
    return poll(&ended, 1, 0) == 1;
}

void close_on_exec_from(int first) {
    if (syscall(SYS_close_range, static_cast<unsigned int>(first), ~0U, kCloseRangeCloexec) == 0) {
        return;
    }
    // Not opendir(), which allocates: another thread may have been in there when this was forked.
    const UniqueFd folder(open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    alignas(ListedEntry) std::array<char, 4096> listed{};
    long size = 0;
    while ((size = syscall(SYS_getdents64, folder.get(), listed.data(), listed.size())) > 0) {
        for (long at = 0; at < size;) {
            const char* entry = listed.data() + at;
            close_on_exec(entry, first);
            std::uint16_t length = 0;
            std::memcpy(&length, entry + offsetof(ListedEntry, length), sizeof length);
            at += length;
        }
    }
}

Result<std::string> path_beside_us(const std::string& name) {
    const Result<std::string> self = own_path();
    if (!self) {
        return self.error();
    }
    return fmt::format("{}/{}", self->substr(0, self->rfind('/')), name);
}

Result<std::string> program_beside_us(const std::string& name) {
    Result<std::string> path = path_beside_us(name);
    if (path && access(path->c_str(), X_OK) != 0) {
        return system_error(errno, fmt::format("{} is needed beside {}; install both in one folder",
                                               *path, *own_path()));
    }
    return path;
}

}  // namespace ddprun
