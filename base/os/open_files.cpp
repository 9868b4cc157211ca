#include "base/os/open_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/os/unique_fd.hpp"

namespace ddprun {

namespace {

constexpr rlim_t kRoomMax = 65536;  // 512 KiB of the kernel's memory

/// The kernel's table grows to hold the highest descriptor, and never shrinks.
void make_room(rlim_t descriptors) {
    const UniqueFd any(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (any.is_open()) {
        const UniqueFd highest(fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(descriptors)));
    }
}

}  // namespace

void raise_open_files(std::size_t expected) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (before != limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        limit.rlim_cur = before;
    }
    const rlim_t room = std::min({rlim_t{expected}, kRoomMax, limit.rlim_cur});
    if (room > 0) {
        make_room(room - 1);
    }
}

}  // namespace ddprun
