#include "tests/fake_gpu/nccl/rings.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace fake_gpu {

void ring_bell(Bell& bell) {
    ++bell;
    (void)syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait_for_bell(Bell& bell, std::uint32_t heard, std::chrono::milliseconds most) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec time{.tv_sec = seconds.count(),
                        .tv_nsec = std::chrono::nanoseconds(most - seconds).count()};
    (void)syscall(SYS_futex, &bell, FUTEX_WAIT, heard, &time, nullptr, 0);
}

}  // namespace fake_gpu
