#include "agent/daemon/cpu_time.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "agent/process/children.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

std::optional<Duration> cpu_time_of_cgroup(int folder) {
    constexpr std::string_view kKey = "usage_usec ";
    const UniqueFd file(openat(folder, "cpu.stat", O_RDONLY | O_CLOEXEC));
    std::array<char, 4096> buffer;
    const ssize_t got = file.is_open() ? read(file.get(), buffer.data(), buffer.size()) : -1;
    const std::string_view text(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    const std::size_t at = text.find(kKey);
    std::int64_t microseconds = 0;
    if (at == std::string_view::npos ||
        std::from_chars(text.data() + at + kKey.size(), text.data() + text.size(), microseconds)
                .ec != std::errc{}) {
        return std::nullopt;
    }
    return std::chrono::microseconds(microseconds);
}

Duration cpu_time_below(int pid) {
    Duration total{};
    if (const std::optional<ProcessStat> self = stat_of(pid)) {
        total += self->cpu_of_reaped;
    }
    for (const int one : descendants_of(pid)) {
        if (const std::optional<ProcessStat> stat = stat_of(one)) {
            total += stat->cpu + stat->cpu_of_reaped;
        }
    }
    return total;
}

}  // namespace ddprun::agent
