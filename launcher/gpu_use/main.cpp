// ddprun-gpu-use: whether workers have used GPUs lately. Exit code 0: they have; 1: they have not,
// as far as can be told. A program of its own: the driver may never answer, and its library is
// larger than the agent that asks.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/process/children.hpp"
#include "launcher/plan/gpus.hpp"
#include "launcher/plan/nvml.hpp"
#include "rendezvous/base/whole_number.hpp"
#include "rendezvous/protocol/exit_codes.hpp"

namespace {

using namespace ddprun;

constexpr int kUsed = 0;
constexpr int kNotUsed = 1;

std::uint64_t microseconds_since_epoch() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

/// The driver counts processes as this namespace does; a container has other numbers.
bool is_in_first_namespace() {
    std::array<char, 64> buffer;
    const ssize_t length = readlink("/proc/self/ns/pid", buffer.data(), buffer.size());
    // PROC_PID_INIT_INO of the kernel.
    return std::string_view(buffer.data(), length > 0 ? static_cast<std::size_t>(length) : 0) ==
           "pid:[4026531836]";
}

/// The places of the GPUs that these workers see, as their environment says.
std::set<std::size_t> seen_by(const std::vector<int>& workers) {
    const std::optional<std::vector<launcher::Gpu>> present = launcher::gpus_of_nvml();
    std::set<std::size_t> seen;
    for (const int pid : workers) {
        if (!agent::stat_of(pid)) {
            continue;
        }
        for (const launcher::VisibleGpu& gpu :
             launcher::visible_gpus(present, agent::variable_of(pid, "CUDA_VISIBLE_DEVICES"))) {
            if (gpu.number) {
                seen.insert(*gpu.number);
            }
        }
    }
    return seen;
}

bool are_used_by(const std::vector<int>& workers, std::uint64_t since) {
    const std::vector<launcher::GpuUse> gpus =
        launcher::gpu_use_of_nvml(since).value_or(std::vector<launcher::GpuUse>{});
    std::set<int> ours;
    for (const int pid : workers) {
        const std::vector<int> processes = agent::processes_of_worker(pid);
        ours.insert(processes.begin(), processes.end());
    }
    for (const launcher::GpuUse& gpu : gpus) {
        if (gpu.pids && std::any_of(gpu.pids->begin(), gpu.pids->end(),
                                    [&ours](int pid) { return ours.contains(pid); })) {
            return true;
        }
    }
    // Whose use it is cannot be told: then that of the GPUs that they see counts as theirs.
    const bool are_numbers_alike = is_in_first_namespace();
    const auto is_told = [are_numbers_alike](const launcher::GpuUse& gpu) {
        return (are_numbers_alike && gpu.pids) || !gpu.is_memory_used;
    };
    if (std::all_of(gpus.begin(), gpus.end(), is_told)) {
        return false;
    }
    const std::set<std::size_t> seen = seen_by(workers);
    return std::any_of(seen.begin(), seen.end(), [&](std::size_t place) {
        return place < gpus.size() && !is_told(gpus[place]);
    });
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto milliseconds =
        arguments.empty() ? std::nullopt : whole_number<std::uint64_t>(arguments[0]);
    std::vector<int> workers;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        workers.push_back(whole_number<int>(arguments[i]).value_or(0));
    }
    if (!milliseconds ||
        std::any_of(workers.begin(), workers.end(), [](int pid) { return pid < 1; })) {
        std::fputs("ddprun-gpu-use: this program is started by ddprun: ddprun-gpu-use MS PID...\n",
                   stderr);
        return rdzv::kExitUsage;
    }
    const std::uint64_t now = microseconds_since_epoch();
    const std::uint64_t since = now - std::min(now, *milliseconds * 1000);
    return are_used_by(workers, since) ? kUsed : kNotUsed;
}
