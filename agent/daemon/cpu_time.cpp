#include "agent/daemon/cpu_time.hpp"

#include <fcntl.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "agent/process/children.hpp"
#include "base/os/read_files.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

namespace {

/// Used by all that live or have lived in the cgroup and below it; none if the kernel does not
/// report it.
std::optional<Duration> cpu_time_of_cgroup(int folder) {
    const UniqueFd file(openat(folder, "cpu.stat", O_RDONLY | O_CLOEXEC));
    const auto used = number_after<std::int64_t>(read_part(file.get(), 4096), "usage_usec ");
    return used ? std::optional<Duration>(std::chrono::microseconds(*used)) : std::nullopt;
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
