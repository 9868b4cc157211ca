// ddprun-gpu-use: what an agent asks NVIDIA's driver. A program of its own: the driver may never
// answer, and its library is larger than the agent. It stays, for that library takes long to start,
// and answers a line on stdin with one on stdout until that is closed:
//
//   use MS PID...          "used" if these workers have used GPUs in the last MS milliseconds;
//                          "unused" if not, or if that is not known
//   memory GPU:BYTES...    of each visible GPU that reports it: its number, and how many used bytes
//                          are owned by no live process. If at most BYTES are in use in all, the
//                          answer may be that total, which is known sooner
//   figures PID...         what each visible GPU does, as agent/watch/gpu_figures.hpp writes it; of
//                          these workers, by local rank; 0: there is none

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "agent/gpu/gpu_memory.hpp"
#include "agent/process/children.hpp"
#include "agent/watch/gpu_figures.hpp"
#include "base/take_until.hpp"
#include "base/whole_number.hpp"
#include "launcher/machine/nvml.hpp"
#include "launcher/plan/gpus.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace {

using namespace ddprun;

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

/// They stay the same while the driver's library is started.
const std::optional<std::vector<launcher::Gpu>>& present_gpus() {
    static const std::optional<std::vector<launcher::Gpu>> gpus = launcher::gpus_of_nvml();
    return gpus;
}

/// The places of the GPUs that these workers see, as their environment says.
std::set<std::size_t> seen_by(const std::vector<int>& workers) {
    std::set<std::size_t> seen;
    for (const int pid : workers) {
        if (!agent::stat_of(pid)) {
            continue;
        }
        for (const launcher::VisibleGpu& gpu : launcher::visible_gpus(
                 present_gpus(), agent::variable_of(pid, "CUDA_VISIBLE_DEVICES"))) {
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

/// Returns nothing if `words` are no question.
std::optional<std::string> answer_to_use(std::string_view words) {
    const auto milliseconds = whole_number<std::uint64_t>(take_until(words, ' '));
    std::vector<int> workers;
    while (!words.empty()) {
        const int pid = whole_number<int>(take_until(words, ' ')).value_or(0);
        if (pid < 1) {
            return std::nullopt;
        }
        workers.push_back(pid);
    }
    if (!milliseconds) {
        return std::nullopt;
    }
    const std::uint64_t now = microseconds_since_epoch();
    return are_used_by(workers, now - std::min(now, *milliseconds * 1000)) ? "used" : "unused";
}

/// False also if the driver numbers processes in another namespace than ours: then their memory
/// counts as held by no process, before the workers and after them.
bool is_living(int pid) {
    static const bool are_numbers_alike = is_in_first_namespace();
    return are_numbers_alike && pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

std::vector<launcher::VisibleGpu> our_gpus() {
    const char* devices = std::getenv("CUDA_VISIBLE_DEVICES");
    return launcher::visible_gpus(
        present_gpus(), devices == nullptr ? std::nullopt : std::optional<std::string>(devices));
}

agent::GpuBytes memory_in_use(const agent::GpuBytes& allowed) {
    const auto exceeds = [&allowed](unsigned number, std::uint64_t bytes) {
        const auto found = allowed.find(static_cast<int>(number));
        return found == allowed.end() || bytes > found->second;
    };
    const auto uses =
        launcher::gpu_memory_of_nvml(exceeds).value_or(std::vector<launcher::GpuMemoryUse>{});
    agent::GpuBytes memory;
    for (const launcher::VisibleGpu& gpu : our_gpus()) {
        const auto bytes = gpu.number && *gpu.number < uses.size()
                               ? launcher::unheld_memory(uses[*gpu.number], is_living)
                               : std::nullopt;
        if (bytes) {
            memory[static_cast<int>(*gpu.number)] = *bytes;
        }
    }
    return memory;
}

/// The places of the GPUs that the worker `index` of `count` has: those where its processes hold
/// memory. If the driver reports memory of no process known here: the one that the worker's
/// environment or local rank selects.
std::set<std::size_t> gpus_of(int pid, std::size_t index, std::size_t count,
                              const std::vector<launcher::GpuWork>& gpus) {
    std::set<std::size_t> held;
    if (is_in_first_namespace()) {
        const std::vector<int> processes = agent::processes_of_worker(pid);
        for (std::size_t place = 0; place < gpus.size(); ++place) {
            for (const launcher::GpuHolder& holder : gpus[place].holders) {
                if (std::find(processes.begin(), processes.end(), holder.pid) != processes.end()) {
                    held.insert(place);
                }
            }
        }
    }
    const std::set<std::size_t> seen = held.empty() ? seen_by({pid}) : held;
    if (!held.empty() || seen.size() <= 1) {
        return seen;
    }
    return seen.size() >= count ? std::set{*std::next(seen.begin(), static_cast<long>(index))}
                                : std::set<std::size_t>();
}

agent::AllGpuFigures figures_of(const std::vector<int>& workers) {
    const std::vector<launcher::GpuWork> gpus =
        launcher::gpu_work_of_nvml().value_or(std::vector<launcher::GpuWork>{});
    agent::AllGpuFigures figures;
    for (const launcher::VisibleGpu& gpu : our_gpus()) {
        if (!gpu.number || *gpu.number >= gpus.size()) {
            continue;
        }
        const launcher::GpuWork& work = gpus[*gpu.number];
        agent::GpuFigures& told = figures.emplace_back();
        told.number = static_cast<int>(*gpu.number);
        constexpr unsigned kPermillePerPercent = 10;
        if (work.percent) {
            told.permille = *work.percent * kPermillePerPercent;
        }
        told.bytes = work.bytes;
        told.total_bytes = work.total_bytes;
        told.milliwatts = work.milliwatts;
    }
    for (std::size_t i = 0; i < workers.size(); ++i) {
        if (workers[i] == 0) {
            continue;
        }
        const std::set<std::size_t> has = gpus_of(workers[i], i, workers.size(), gpus);
        for (agent::GpuFigures& gpu : figures) {
            if (has.contains(static_cast<std::size_t>(gpu.number))) {
                gpu.ranks.emplace_back(static_cast<int>(i));
            }
        }
    }
    return figures;
}

std::optional<std::string> answer_to_figures(std::string_view words) {
    std::vector<int> workers;
    while (!words.empty()) {
        const auto pid = whole_number<int>(take_until(words, ' '));
        if (!pid || *pid < 0) {
            return std::nullopt;
        }
        workers.push_back(*pid);
    }
    return agent::text_of(figures_of(workers));
}

std::optional<std::string> answer_to(std::string_view question) {
    const std::string_view word = take_until(question, ' ');
    if (word == "figures") {
        return answer_to_figures(question);
    }
    if (word == "use") {
        return answer_to_use(question);
    }
    const auto allowed = agent::gpu_memory_from(question);
    return word == "memory" && allowed ? std::optional(agent::text_of(memory_in_use(*allowed)))
                                       : std::nullopt;
}

/// The driver may hold us up when the agent dies. False: it has died already.
bool die_with_agent() {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    pollfd questions{STDIN_FILENO, POLLIN, 0};
    (void)poll(&questions, 1, 0);
    return (questions.revents & (POLLIN | POLLHUP)) != POLLHUP;
}

/// Until there are no more; false if one makes no sense.
bool answer_questions() {
    std::string question;
    while (std::getline(std::cin, question)) {
        const std::optional<std::string> answer = answer_to(question);
        if (!answer) {
            return false;
        }
        fmt::print("{}\n", *answer);
        (void)std::fflush(stdout);  // A reader that is gone asks no further question.
    }
    return true;
}

}  // namespace

int main(int argc, char** /*argv*/) {
    if (!die_with_agent()) {
        return 0;
    }
    const std::shared_ptr<const void> started = launcher::keep_nvml_started();
    if (argc == 1 && answer_questions()) {
        return 0;
    }
    fmt::print(
        stderr,
        "ddprun-gpu-use: this program is started and asked by ddprun; its questions are "
        "lines \"use MS PID...\", \"memory GPU:BYTES...\" and \"figures PID...\" on stdin\n");
    return kExitUsage;
}
