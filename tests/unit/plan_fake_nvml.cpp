// A driver's library with three GPUs, of which the second is divided in two and the third answers
// nothing; in NVML's ABI. How they are used is said by the file that DDPRUN_FAKE_GPU_USE names, in
// lines of
//
//   process GPU PID MEMORY AGE   a sample of so many milliseconds ago
//   memory GPU PERCENT           used by anybody
//   untold                       samples of processes are not supported
//   block                        samples of processes are never answered
//   held GPU BYTES FROM TO       so much more memory is in use when a process asks for the FROMth
//   to
//                                the TOth time
//   holder GPU PID BYTES         a process that computes there; - bytes: they are not told
//   work GPU PERCENT MILLIWATTS
//                                a kernel ran so much, and power is drawn; else 100 and untold
//   block-memory                 which memory is in use is never answered
//
// Who asks for samples leaves the files <that>.asked1, .asked2, …, who is told how much memory is
// in use <that>.memory1, …, and who is never answered <that>.blocked1, ….

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kTooSmall = 7;

struct Device {
    const char* uuid;
    unsigned bus;
    bool has_mig;
};

std::array<Device, 5> devices = {Device{"GPU-11", 0x3b, false}, Device{"GPU-22", 0xaf, true},
                                 Device{nullptr, 0, false}, Device{"MIG-1", 0, false},
                                 Device{"MIG-2", 0, false}};

struct PciInfo {
    std::array<char, 16> legacy_bus_id;
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned device_id;
    unsigned subsystem_id;
    std::array<char, 32> bus_id;
};

struct Sample {
    unsigned pid;
    unsigned long long time;
    unsigned sm;
    unsigned memory;
    unsigned encoder;
    unsigned decoder;
};

struct ProcessInfo {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
};

/// The lines of the file that begin with `word`, without it.
std::vector<std::istringstream> lines_of(const std::string& word) {
    const char* path = std::getenv("DDPRUN_FAKE_GPU_USE");
    std::ifstream file(path == nullptr ? "/dev/null" : path);
    std::vector<std::istringstream> lines;
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string first;
        words >> first;
        if (first == word) {
            lines.push_back(std::move(words));
        }
    }
    return lines;
}

void leave_mark(const std::string& word) {
    const char* path = std::getenv("DDPRUN_FAKE_GPU_USE");
    for (int i = 1; path != nullptr; ++i) {
        const std::string mark = std::string(path) + "." + word + std::to_string(i);
        const int fd = open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0) {
            close(fd);
            return;
        }
    }
}

/// As long as the file says so.
void block(const std::string& word) {
    while (!lines_of(word).empty()) {
        leave_mark("blocked");
        pause();
    }
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
    return kSuccess;
}

int nvmlShutdown() {
    return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = 3;
    return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
    *device = &devices.at(index);
    return kSuccess;
}

int nvmlDeviceGetUUID(Device* device, char* text, unsigned size) {
    if (device->uuid == nullptr) {
        return kNotSupported;
    }
    std::snprintf(text, size, "%s", device->uuid);
    return kSuccess;
}

int nvmlDeviceGetPciInfo_v3(Device* device, PciInfo* info) {
    if (device->uuid == nullptr) {
        return kNotSupported;
    }
    std::memset(info, 0x7f, sizeof *info);
    info->domain = 1;
    info->bus = device->bus;
    info->device = 0;
    return kSuccess;
}

int nvmlDeviceGetMigMode(Device* device, unsigned* current, unsigned* pending) {
    *current = device->has_mig ? 1 : 0;
    *pending = 0;
    return device->uuid == nullptr ? kNotSupported : kSuccess;
}

int nvmlDeviceGetMaxMigDeviceCount(Device* /*device*/, unsigned* count) {
    *count = 7;
    return kSuccess;
}

int nvmlDeviceGetTotalEccErrors(Device* device, int kind, int since, unsigned long long* count) {
    constexpr int kUncorrected = 1;
    constexpr int kSinceDriverLoad = 0;
    *count = kind == kUncorrected && since == kSinceDriverLoad ? 7 : 9999;
    return device->has_mig ? kSuccess : kNotSupported;
}

int nvmlDeviceGetRemappedRows(Device* device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failed) {
    *corrected = 3;
    *uncorrected = 4;
    *pending = device->has_mig ? 0 : 1;
    *failed = device->has_mig ? 1 : 0;
    return device->uuid == nullptr ? kNotSupported : kSuccess;
}

int nvmlDeviceGetMemoryInfo(Device* device, unsigned long long* total_free_used) {
    static int asked = 0;
    if (device == &devices[0]) {
        block("block-memory");
        ++asked;
    }
    if (device == &devices[2]) {
        leave_mark("memory");
    }
    total_free_used[0] = 80ULL << 30;
    total_free_used[2] = 20ULL << 30;
    for (std::istringstream& line : lines_of("held")) {
        std::size_t gpu = 0;
        unsigned long long bytes = 0;
        int from = 0;
        int to = 0;
        line >> gpu >> bytes >> from >> to;
        const bool is_held = device == &devices.at(gpu) && from <= asked && asked <= to;
        total_free_used[2] += is_held ? bytes : 0;
    }
    total_free_used[1] = total_free_used[0] - total_free_used[2];
    return device->uuid == nullptr ? kNotSupported : kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device* device, unsigned* count,
                                            ProcessInfo* processes) {
    unsigned found = 0;
    for (std::istringstream& line : lines_of("holder")) {
        std::size_t gpu = 0;
        ProcessInfo process{};
        std::string bytes;
        line >> gpu >> process.pid >> bytes;
        process.bytes = bytes == "-" ? ~0ULL : std::stoull(bytes);
        if (device != &devices.at(gpu)) {
            continue;
        }
        if (processes != nullptr && found < *count) {
            processes[found] = process;
        }
        ++found;
    }
    const bool do_fit = found == 0 || (processes != nullptr && found <= *count);
    *count = found;
    return do_fit ? kSuccess : kTooSmall;
}

/// The same ones.
int nvmlDeviceGetGraphicsRunningProcesses_v2(Device* device, unsigned* count,
                                             ProcessInfo* processes) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, processes);
}

int nvmlDeviceGetUtilizationRates(Device* device, unsigned* gpu_memory) {
    gpu_memory[0] = 100;
    gpu_memory[1] = 0;
    for (std::istringstream& line : lines_of("work")) {
        std::size_t gpu = 0;
        unsigned percent = 0;
        line >> gpu >> percent;
        if (device == &devices.at(gpu)) {
            gpu_memory[0] = percent;
        }
    }
    for (std::istringstream& line : lines_of("memory")) {
        std::size_t gpu = 0;
        unsigned percent = 0;
        line >> gpu >> percent;
        gpu_memory[1] += device == &devices.at(gpu) ? percent : 0;
    }
    return device->uuid == nullptr ? kNotSupported : kSuccess;
}

int nvmlDeviceGetPowerUsage(Device* device, unsigned* milliwatts) {
    for (std::istringstream& line : lines_of("work")) {
        std::size_t gpu = 0;
        unsigned percent = 0;
        line >> gpu >> percent >> *milliwatts;
        if (device == &devices.at(gpu)) {
            return kSuccess;
        }
    }
    return kNotSupported;
}

int nvmlDeviceGetProcessUtilization(Device* device, Sample* samples, unsigned* count,
                                    unsigned long long since) {
    if (device == &devices[0] && samples == nullptr) {
        leave_mark("asked");
    }
    block("block");
    if (device->uuid == nullptr || !lines_of("untold").empty()) {
        return kNotSupported;
    }
    using std::chrono::microseconds;
    const auto now = std::chrono::duration_cast<microseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    unsigned found = 0;
    for (std::istringstream& line : lines_of("process")) {
        std::size_t gpu = 0;
        Sample sample{};
        long age = 0;
        line >> gpu >> sample.pid >> sample.memory >> age;
        sample.sm = 100;
        sample.time = static_cast<unsigned long long>(now.count() - age * 1000);
        if (device != &devices.at(gpu) || sample.time <= since) {
            continue;
        }
        if (samples != nullptr && found < *count) {
            samples[found] = sample;
        }
        ++found;
    }
    const bool do_fit = samples != nullptr && found <= *count;
    *count = found;
    return found == 0 ? kNotFound : do_fit ? kSuccess : kTooSmall;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device* /*device*/, unsigned index, Device** mig) {
    // Two of the seven places are taken, and not the first two.
    if (index != 2 && index != 5) {
        return kNotSupported;
    }
    *mig = &devices.at(index == 2 ? 3 : 4);
    return kSuccess;
}
}
