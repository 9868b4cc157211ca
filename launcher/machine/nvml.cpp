#include "launcher/machine/nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "launcher/machine/library_close.hpp"

namespace ddprun::launcher {

namespace {

// NVML's ABI, as far as it is used; its header comes with the CUDA Toolkit only.
constexpr int kSuccess = 0;
constexpr int kNotFound = 6;
constexpr int kTooSmall = 7;
constexpr unsigned kMigIsOn = 1;
constexpr int kUncorrected = 1;
constexpr int kSinceDriverLoad = 0;
constexpr unsigned kMostListed = 65536;
constexpr unsigned kMoreListed = 64;  // may have come since they were counted
using Device = struct NvmlDevice*;
using Uuid = std::array<char, 96>;

struct PciInfo {
    std::array<char, 16> legacy_bus_id;
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned device_id;
    unsigned subsystem_id;
    std::array<char, 32> bus_id;
};

struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

/// Of the functions that end in _v2; those in _v3 have had two different ones.
struct ProcessInfo {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
};
constexpr unsigned long long kNotTold = ~0ULL;

struct Rates {
    unsigned gpu;
    unsigned memory;
};

/// In percent of a sample period.
struct ProcessSample {
    unsigned pid;
    unsigned long long time;
    unsigned sm;
    unsigned memory;
    unsigned encoder;
    unsigned decoder;
};

/// Never linked: machines without a driver do not have it.
class Nvml {
public:
    Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
        if (!library_) {
            return;
        }
        find(start_, "nvmlInit_v2");
        find(stop_, "nvmlShutdown");
        find(count_, "nvmlDeviceGetCount_v2");
        find(handle_, "nvmlDeviceGetHandleByIndex_v2");
        find(uuid_, "nvmlDeviceGetUUID");
        find(pci_info_, "nvmlDeviceGetPciInfo_v3");
        find(mig_mode_, "nvmlDeviceGetMigMode");
        find(mig_count_, "nvmlDeviceGetMaxMigDeviceCount");
        find(mig_handle_, "nvmlDeviceGetMigDeviceHandleByIndex");
        find(memory_errors_, "nvmlDeviceGetTotalEccErrors");
        find(remapped_rows_, "nvmlDeviceGetRemappedRows");
        find(memory_, "nvmlDeviceGetMemoryInfo");
        find(computing_, "nvmlDeviceGetComputeRunningProcesses_v2");
        find(drawing_, "nvmlDeviceGetGraphicsRunningProcesses_v2");
        find(sharing_, "nvmlDeviceGetMPSComputeRunningProcesses_v2");
        find(rates_, "nvmlDeviceGetUtilizationRates");
        find(power_, "nvmlDeviceGetPowerUsage");
        find(samples_, "nvmlDeviceGetProcessUtilization");
        is_started_ = start_ != nullptr && stop_ != nullptr && start_() == kSuccess;
    }
    ~Nvml() {
        if (is_started_) {
            stop_();
        }
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    [[nodiscard]] std::optional<unsigned> count() const {
        unsigned found = 0;
        const bool is_counted = is_started_ && count_ != nullptr && count_(&found) == kSuccess;
        return is_counted ? std::optional{found} : std::nullopt;
    }

    /// What cannot be asked stays empty: the GPU is there all the same.
    [[nodiscard]] Gpu gpu(unsigned index) const {
        Gpu gpu;
        Device device = nullptr;
        if (handle_ == nullptr || handle_(index, &device) != kSuccess) {
            return gpu;
        }
        gpu.uuid = uuid_of(device);
        PciInfo pci{};
        if (pci_info_ != nullptr && pci_info_(device, &pci) == kSuccess) {
            gpu.pci_address =
                fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
        }
        unsigned mode = 0;
        unsigned pending = 0;
        unsigned most = 0;
        if (mig_mode_ == nullptr || mig_count_ == nullptr || mig_handle_ == nullptr ||
            mig_mode_(device, &mode, &pending) != kSuccess || mode != kMigIsOn ||
            mig_count_(device, &most) != kSuccess) {
            return gpu;
        }
        for (unsigned i = 0; i < most; ++i) {
            Device mig = nullptr;
            if (mig_handle_(device, i, &mig) == kSuccess) {
                gpu.mig_uuids.push_back(uuid_of(mig));
            }
        }
        return gpu;
    }

    [[nodiscard]] GpuHealth health(unsigned index) const {
        GpuHealth health;
        Device device = nullptr;
        if (handle_ == nullptr || handle_(index, &device) != kSuccess) {
            return health;
        }
        health.uuid = uuid_of(device);
        unsigned long long errors = 0;
        if (memory_errors_ != nullptr &&
            memory_errors_(device, kUncorrected, kSinceDriverLoad, &errors) == kSuccess) {
            health.uncorrected_errors = errors;
        }
        unsigned corrected = 0;
        unsigned uncorrected = 0;
        unsigned pending = 0;
        unsigned failed = 0;
        if (remapped_rows_ != nullptr &&
            remapped_rows_(device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
            health.has_pending_remap = pending != 0;
            health.has_failed_remap = failed != 0;
        }
        if (const std::optional<Memory> memory = memory_of(device)) {
            health.memory_bytes = memory->total;
            health.memory_used_bytes = memory->used;
        }
        return health;
    }

    template <typename IsSuspect>
    [[nodiscard]] GpuMemoryUse memory_use(unsigned index, const IsSuspect& is_suspect) const {
        GpuMemoryUse use;
        Device device = nullptr;
        if (handle_ == nullptr || handle_(index, &device) != kSuccess) {
            return use;
        }
        const std::optional<Memory> memory = memory_of(device);
        if (!memory) {
            return use;
        }
        use.bytes = memory->used;
        if (is_suspect(index, memory->used)) {
            for (const ListProcesses list : {computing_, drawing_, sharing_}) {
                add_holders(list, device, use.holders);
            }
        }
        return use;
    }

    [[nodiscard]] GpuWork work(unsigned index) const {
        GpuWork work;
        Device device = nullptr;
        if (handle_ == nullptr || handle_(index, &device) != kSuccess) {
            return work;
        }
        Rates rates{};
        if (rates_ != nullptr && rates_(device, &rates) == kSuccess) {
            work.percent = rates.gpu;
        }
        if (const std::optional<Memory> memory = memory_of(device)) {
            work.bytes = memory->used;
            work.total_bytes = memory->total;
        }
        unsigned milliwatts = 0;
        if (power_ != nullptr && power_(device, &milliwatts) == kSuccess) {
            work.milliwatts = milliwatts;
        }
        add_holders(computing_, device, work.holders);
        return work;
    }

    [[nodiscard]] GpuUse use(unsigned index, std::uint64_t since) const {
        GpuUse use;
        Device device = nullptr;
        if (handle_ == nullptr || handle_(index, &device) != kSuccess) {
            return use;
        }
        use.pids = users_of(device, since);
        Rates rates{};
        use.is_memory_used =
            rates_ != nullptr && rates_(device, &rates) == kSuccess && rates.memory > 0;
        return use;
    }

private:
    using ListProcesses = int (*)(Device, unsigned*, ProcessInfo*);

    [[nodiscard]] std::optional<Memory> memory_of(Device device) const {
        Memory memory{};
        const bool is_told = memory_ != nullptr && memory_(device, &memory) == kSuccess;
        return is_told ? std::optional{memory} : std::nullopt;
    }

    /// One that computes and draws is listed twice, with all of its memory.
    static void add_holders(ListProcesses list, Device device, std::vector<GpuHolder>& holders) {
        unsigned count = 0;
        const int result = list == nullptr ? kNotFound : list(device, &count, nullptr);
        if (result != kTooSmall && result != kSuccess) {
            return;
        }
        std::vector<ProcessInfo> processes(std::min(count, kMostListed) + kMoreListed);
        count = static_cast<unsigned>(processes.size());
        if (list(device, &count, processes.data()) != kSuccess) {
            return;
        }
        processes.resize(std::min<std::size_t>(count, processes.size()));
        for (const ProcessInfo& process : processes) {
            const int pid = static_cast<int>(process.pid);
            const bool is_known = std::any_of(holders.begin(), holders.end(),
                                              [pid](const auto& one) { return one.pid == pid; });
            if (!is_known) {
                holders.push_back({pid, process.bytes == kNotTold
                                            ? std::nullopt
                                            : std::optional<std::uint64_t>{process.bytes}});
            }
        }
    }

    [[nodiscard]] std::optional<std::vector<int>> users_of(Device device,
                                                           std::uint64_t since) const {
        unsigned count = 0;
        int result = samples_ == nullptr ? kTooSmall : samples_(device, nullptr, &count, since);
        if (samples_ == nullptr ||
            (result != kTooSmall && result != kNotFound && result != kSuccess)) {
            return std::nullopt;
        }
        std::vector<ProcessSample> samples(std::min(count, kMostListed) + kMoreListed);
        count = static_cast<unsigned>(samples.size());
        result = samples_(device, samples.data(), &count, since);
        if (result != kSuccess && result != kNotFound) {
            return std::nullopt;
        }
        samples.resize(result == kSuccess ? std::min<std::size_t>(count, samples.size()) : 0);
        std::vector<int> pids;
        for (const ProcessSample& sample : samples) {
            if (sample.memory > 0) {
                pids.push_back(static_cast<int>(sample.pid));
            }
        }
        return pids;
    }

    template <typename Function>
    void find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(::dlsym(library_.get(), name));
    }

    [[nodiscard]] std::string uuid_of(Device device) const {
        Uuid text{};
        const bool is_told =
            uuid_ != nullptr && uuid_(device, text.data(), text.size()) == kSuccess;
        text.back() = '\0';
        return is_told ? std::string{text.data()} : std::string{};
    }

    std::unique_ptr<void, LibraryClose> library_;
    bool is_started_ = false;
    int (*start_)() = nullptr;
    int (*stop_)() = nullptr;
    int (*count_)(unsigned*) = nullptr;
    int (*handle_)(unsigned, Device*) = nullptr;
    int (*uuid_)(Device, char*, unsigned) = nullptr;
    int (*pci_info_)(Device, PciInfo*) = nullptr;
    int (*mig_mode_)(Device, unsigned*, unsigned*) = nullptr;
    int (*mig_count_)(Device, unsigned*) = nullptr;
    int (*mig_handle_)(Device, unsigned, Device*) = nullptr;
    int (*memory_errors_)(Device, int, int, unsigned long long*) = nullptr;
    int (*remapped_rows_)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
    int (*memory_)(Device, Memory*) = nullptr;
    ListProcesses computing_ = nullptr;
    ListProcesses drawing_ = nullptr;
    ListProcesses sharing_ = nullptr;
    int (*rates_)(Device, Rates*) = nullptr;
    int (*power_)(Device, unsigned*) = nullptr;
    int (*samples_)(Device, ProcessSample*, unsigned*, unsigned long long) = nullptr;
};

/// What `ask`, called with the driver and a number, answers of each GPU.
template <typename Ask>
auto ask_all(const Ask& ask) {
    const Nvml nvml;
    const std::optional<unsigned> count = nvml.count();
    std::optional<std::vector<decltype(ask(nvml, 0U))>> answers;
    if (count) {
        answers.emplace();
    }
    for (unsigned i = 0; i < count.value_or(0); ++i) {
        answers->push_back(ask(nvml, i));
    }
    return answers;
}

}  // namespace

std::optional<std::vector<Gpu>> gpus_of_nvml() {
    return ask_all([](const Nvml& nvml, unsigned index) { return nvml.gpu(index); });
}

std::optional<std::vector<GpuHealth>> gpu_health_of_nvml() {
    return ask_all([](const Nvml& nvml, unsigned index) { return nvml.health(index); });
}

std::optional<std::vector<GpuUse>> gpu_use_of_nvml(std::uint64_t since) {
    return ask_all([since](const Nvml& nvml, unsigned index) { return nvml.use(index, since); });
}

std::optional<std::vector<GpuMemoryUse>> gpu_memory_of_nvml(
    const std::function<bool(unsigned number, std::uint64_t bytes)>& is_suspect) {
    return ask_all([&is_suspect](const Nvml& nvml, unsigned index) {
        return nvml.memory_use(index, is_suspect);
    });
}

std::optional<std::vector<GpuWork>> gpu_work_of_nvml() {
    return ask_all([](const Nvml& nvml, unsigned index) { return nvml.work(index); });
}

std::shared_ptr<const void> keep_nvml_started() {
    return std::make_shared<const Nvml>();
}

}  // namespace ddprun::launcher
