// libnvidia-ml.so.1: what LibTorch, the tests and ddprun ask of it. A GPU draws much power while a
// process computes on it, and less while all of its processes wait.

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_gpu/machine/gpus.hpp"
#include "tests/fake_gpu/machine/ledger.hpp"
#include "tests/fake_gpu/machine/settings.hpp"

namespace {

// NVML's ABI; its header comes with the CUDA Toolkit only.
constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kTooSmall = 7;
using Device = void*;

struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

struct Rates {
    unsigned gpu;
    unsigned memory;
};

struct PciInfo {
    std::array<char, 16> legacy_bus_id;
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned device_id;
    unsigned subsystem_id;
    std::array<char, 32> bus_id;
};

/// An entry of the functions without a version.
struct ProcessMemory {
    unsigned pid;
    unsigned long long bytes;
};

struct ProcessInfo {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
};

/// A process's use of a GPU, in percent of a sample period. `time` is the period's end, in
/// microseconds since 1970.
struct ProcessSample {
    unsigned pid;
    unsigned long long time;
    unsigned sm;
    unsigned memory;
    unsigned encoder;
    unsigned decoder;
};

constexpr unsigned kWholePercent = 100;
constexpr unsigned kMemoryPercent = 30;  ///< while it computes; a kernel that waits touches none
constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kMicrosecondNs = 1000;

constexpr unsigned kIdleMilliwatts = 70'000;
constexpr unsigned kWaitingMilliwatts = 120'000;
constexpr unsigned kWorkingMilliwatts = 400'000;
constexpr unsigned kDegrees = 40;

/// The handle is never null, also for GPU 0.
Device handle_of(int gpu) {
    return reinterpret_cast<Device>(static_cast<std::intptr_t>(gpu + 1));
}

int gpu_of(Device device) {
    return static_cast<int>(reinterpret_cast<std::intptr_t>(device)) - 1;
}

int write(std::string_view what, char* text, unsigned size) {
    if (what.size() >= size) {
        return kTooSmall;
    }
    *std::copy(what.begin(), what.end(), text) = '\0';
    return kSuccess;
}

/// Returns the bus id as the driver writes it: 00000000:1A:00.0.
std::string bus_id_of(int gpu) {
    std::array<char, 32> text{};
    (void)std::snprintf(text.data(), text.size(), "00000000:%02X:00.0", fake_gpu::pci_bus_of(gpu));
    return text.data();
}

enum class Use { Idle, Waiting, Working };

/// Copies as many entries of `found` as *count has room for, and sets *count to their number in
/// `found`.
template <typename Entry>
int list(const std::vector<Entry>& found, Entry* entries, unsigned* count) {
    const unsigned room = entries == nullptr ? 0 : *count;
    *count = static_cast<unsigned>(found.size());
    std::copy_n(found.begin(), std::min(room, *count), entries);
    return *count <= room ? kSuccess : kTooSmall;
}

std::vector<ProcessMemory> memory_of_processes(Device device) {
    std::vector<ProcessMemory> found;
    for (const fake_gpu::Holder& holder : fake_gpu::holders_of(gpu_of(device))) {
        found.push_back({.pid = static_cast<unsigned>(holder.pid), .bytes = holder.bytes});
    }
    return found;
}

std::uint64_t now_of(clockid_t clock) {
    timespec now{};
    (void)clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kSecondNs +
           static_cast<std::uint64_t>(now.tv_nsec);
}

/// Returns the use of `gpu` in the last second: the driver's figures are averages over a second.
Use use_of(int gpu) {
    const std::uint64_t now_ns = now_of(CLOCK_MONOTONIC);
    const std::vector<fake_gpu::Holder> holders = fake_gpu::holders_of(gpu);
    const auto is_working = [&](const fake_gpu::Holder& holder) {
        return holder.worked_at_ns + kSecondNs > now_ns;
    };
    if (std::any_of(holders.begin(), holders.end(), is_working)) {
        return Use::Working;
    }
    return holders.empty() ? Use::Idle : Use::Waiting;
}

int find_gpu(Device* device, const std::string& name, std::string (*name_of)(int)) {
    for (int gpu = 0; gpu < fake_gpu::settings().gpu_count; ++gpu) {
        if (name_of(gpu) == name) {
            *device = handle_of(gpu);
            return kSuccess;
        }
    }
    return kNotFound;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
    return kSuccess;
}

int nvmlInitWithFlags(unsigned /*flags*/) {
    return kSuccess;
}

int nvmlShutdown() {
    return kSuccess;
}

const char* nvmlErrorString(int /*code*/) {
    return "an error of the fake GPU's driver";
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
    return write("580.00.fake", text, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = fake_gpu::kCudaVersion;
    return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = static_cast<unsigned>(fake_gpu::settings().gpu_count);
    return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
    if (index >= static_cast<unsigned>(fake_gpu::settings().gpu_count)) {
        return kInvalidArgument;
    }
    *device = handle_of(static_cast<int>(index));
    return kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
    return find_gpu(device, uuid, &fake_gpu::uuid_text);
}

/// The domain has four or eight digits, and letters may be small.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device* device) {
    constexpr std::size_t kLength = 16;
    std::string name = bus_id;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
    name.insert(0, name.size() < kLength ? kLength - name.size() : 0, '0');
    return find_gpu(device, name, &bus_id_of);
}

int nvmlDeviceGetIndex(Device device, unsigned* index) {
    *index = static_cast<unsigned>(gpu_of(device));
    return kSuccess;
}

int nvmlDeviceGetMinorNumber(Device device, unsigned* number) {
    return nvmlDeviceGetIndex(device, number);
}

int nvmlDeviceGetUUID(Device device, char* text, unsigned size) {
    return write(fake_gpu::uuid_text(gpu_of(device)), text, size);
}

int nvmlDeviceGetName(Device /*device*/, char* text, unsigned size) {
    return write(fake_gpu::kGpuName, text, size);
}

int nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
    *info = {};
    info->bus = fake_gpu::pci_bus_of(gpu_of(device));
    return write(bus_id_of(gpu_of(device)), info->bus_id.data(),
                 static_cast<unsigned>(info->bus_id.size()));
}

int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
    memory->total = fake_gpu::settings().bytes_of_gpu;
    memory->used = fake_gpu::bytes_in_use(gpu_of(device));
    memory->free = memory->total - std::min(memory->total, memory->used);
    return kSuccess;
}

/// NCCL's kernels count as use while they wait.
int nvmlDeviceGetUtilizationRates(Device device, Rates* rates) {
    const Use use = use_of(gpu_of(device));
    *rates = {.gpu = use == Use::Idle ? 0 : kWholePercent,
              .memory = use == Use::Working ? kMemoryPercent : 0};
    return kSuccess;
}

int nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
    const Use use = use_of(gpu_of(device));
    *milliwatts = use == Use::Idle      ? kIdleMilliwatts
                  : use == Use::Waiting ? kWaitingMilliwatts
                                        : kWorkingMilliwatts;
    return kSuccess;
}

int nvmlDeviceGetTemperature(Device /*device*/, int /*sensor*/, unsigned* degrees) {
    *degrees = kDegrees;
    return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned* count, ProcessMemory* processes) {
    return list(memory_of_processes(device), processes, count);
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned* count,
                                            ProcessInfo* processes) {
    std::vector<ProcessInfo> found;
    for (const ProcessMemory& process : memory_of_processes(device)) {
        found.push_back(
            {.pid = process.pid, .bytes = process.bytes, .gpu_instance = 0, .compute_instance = 0});
    }
    return list(found, processes, count);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count,
                                            ProcessInfo* processes) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Device /*device*/, unsigned* count,
                                             ProcessInfo* /*processes*/) {
    *count = 0;
    return kSuccess;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v2(Device /*device*/, unsigned* count,
                                               ProcessInfo* /*processes*/) {
    *count = 0;
    return kSuccess;
}

/// Lists one sample for each process that has computed after `since`.
int nvmlDeviceGetProcessUtilization(Device device, ProcessSample* samples, unsigned* count,
                                    unsigned long long since) {
    const std::uint64_t started_ns = now_of(CLOCK_REALTIME) - now_of(CLOCK_MONOTONIC);
    std::vector<ProcessSample> found;
    for (const fake_gpu::Holder& holder : fake_gpu::holders_of(gpu_of(device))) {
        const std::uint64_t time = (started_ns + holder.worked_at_ns) / kMicrosecondNs;
        if (holder.worked_at_ns != 0 && time > since) {
            found.push_back({.pid = static_cast<unsigned>(holder.pid),
                             .time = time,
                             .sm = kWholePercent,
                             .memory = kMemoryPercent,
                             .encoder = 0,
                             .decoder = 0});
        }
    }
    const int result = list(found, samples, count);
    return found.empty() ? kNotFound : result;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device /*device*/, unsigned /*link*/, int* /*type*/) {
    return kNotSupported;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device /*device*/, unsigned /*link*/, PciInfo* /*info*/) {
    return kNotSupported;
}

int nvmlDeviceGetGpuFabricInfoV(Device /*device*/, void* /*info*/) {
    return kNotSupported;
}
}
