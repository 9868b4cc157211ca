#include "launcher/plan/cores.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/whole_number.hpp"
#include "launcher/plan/placement.hpp"

namespace ddprun::launcher {

namespace {

int allowed_cores(const Surroundings& surroundings) {
    const std::vector<int> cpus = surroundings.allowed_cpus();
    const std::string threads = "/sys/devices/system/cpu/smt/active";
    if (!surroundings.read_file(threads).value_or("").starts_with('1')) {
        return static_cast<int>(cpus.size());
    }
    std::set<int> cores;  // by their lowest CPU
    for (const int cpu : cpus) {
        const std::string siblings =
            surroundings
                .read_file(
                    fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu))
                .value_or("");
        const std::optional<std::vector<int>> list = parse_cpu_list(siblings);
        cores.insert(list && !list->empty() ? list->front() : cpu);
    }
    return static_cast<int>(cores.size());
}

/// "200000 100000" is two CPUs, "max 100000" no bound.
std::optional<double> quota_of(std::string_view cpu_max) {
    cpu_max = cpu_max.substr(0, cpu_max.find('\n'));
    const std::size_t blank = cpu_max.find(' ');
    if (blank == std::string_view::npos) {
        return std::nullopt;
    }
    const std::optional<double> share = whole_number<double>(cpu_max.substr(0, blank));
    const std::optional<double> period = whole_number<double>(cpu_max.substr(blank + 1));
    return share && period && *period > 0 ? std::optional{*share / *period} : std::nullopt;
}

}  // namespace

std::optional<double> cpu_quota(const Surroundings& surroundings) {
    constexpr std::string_view kUnified = "0::";
    const std::string groups = surroundings.read_file("/proc/self/cgroup").value_or("");
    std::size_t start = groups.starts_with(kUnified) ? 0 : groups.find("\n0::");
    if (start == std::string::npos) {
        return std::nullopt;
    }
    start = groups.find(kUnified, start) + kUnified.size();
    std::string path = groups.substr(start, groups.find('\n', start) - start);
    std::optional<double> least;
    for (;;) {
        const std::string file = fmt::format("/sys/fs/cgroup{}/cpu.max", path == "/" ? "" : path);
        if (const auto found = quota_of(surroundings.read_file(file).value_or(""))) {
            least = std::min(least.value_or(*found), *found);
        }
        if (path.empty() || path == "/") {
            return least;
        }
        path.erase(path.rfind('/'));
    }
}

int usable_cores(const Surroundings& surroundings) {
    const int cores = allowed_cores(surroundings);
    const std::optional<double> most = cpu_quota(surroundings);
    const int within = most && *most < cores ? static_cast<int>(std::ceil(*most)) : cores;
    return std::max(1, within);
}

}  // namespace ddprun::launcher
