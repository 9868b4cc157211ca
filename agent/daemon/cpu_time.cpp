#include "agent/daemon/cpu_time.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "agent/process/children.hpp"

namespace ddprun::agent {

namespace {

/// Used by all that live or have lived in the cgroup and below it; none if the kernel does not
/// tell.
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

/// Used by all descendants of `pid` that live, and by those that were reaped by it or by them.
Duration cpu_time_below(int pid, const std::string& proc) {
    Duration total{};
    if (const std::optional<ProcessStat> self = stat_of(pid, proc)) {
        total += self->cpu_of_reaped;
    }
    for (const int one : descendants_of(pid, proc)) {
        if (const std::optional<ProcessStat> stat = stat_of(one, proc)) {
            total += stat->cpu + stat->cpu_of_reaped;
        }
    }
    return total;
}

}  // namespace

CpuTime::CpuTime(UniqueFd cgroup, int keeper, std::string proc)
    : cgroup_(std::make_shared<const UniqueFd>(std::move(cgroup))),
      keeper_(keeper),
      proc_(std::move(proc)) {}

Duration CpuTime::used() const {
    const std::optional<Duration> told =
        cgroup_->is_open() ? cpu_time_of_cgroup(cgroup_->get()) : std::optional<Duration>();
    return told ? *told : cpu_time_below(keeper_, proc_);
}

}  // namespace ddprun::agent
