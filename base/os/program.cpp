#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <memory>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/os/start_program.hpp"
#include "base/whole_number.hpp"

namespace ddprun {

namespace {

constexpr unsigned int kCloseRangeCloexec = 4;  // CLOSE_RANGE_CLOEXEC, unknown to old headers

}  // namespace

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
    const Directory directory(opendir("/proc/self/fd"));
    while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
        const std::optional<int> fd = whole_number<int>(entry->d_name);
        if (fd && *fd >= first) {
            (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
        }
    }
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
