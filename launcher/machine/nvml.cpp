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
constexpr int kMissing = 13;  // the function
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

/// The layout for functions that end in _v2; those in _v3 have had two different ones.
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

/// One function of the driver's library; an older library may lack it.
template <typename... Arguments>
class LibraryFunction {
public:
    LibraryFunction(void* library, const char* name)
        : function_(library == nullptr ? nullptr
                                       : reinterpret_cast<Pointer>(::dlsym(library, name))) {}

    int operator()(Arguments... arguments) const {
        return function_ == nullptr ? kMissing : function_(arguments...);
    }

private:
    using Pointer = int (*)(Arguments...);
    Pointer function_;
};

/// Never linked: machines without a driver do not have it.
class Nvml {
public:
    Nvml() : is_started_(start_() == kSuccess) {}
    ~Nvml() {
        if (is_started_) {
            stop_();
        }
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    [[nodiscard]] std::optional<unsigned> count() const {
        unsigned found = 0;
        const bool is_counted = is_started_ && count_(&found) == kSuccess;
        return is_counted ? std::optional{found} : std::nullopt;
    }

    /// Null: it does not answer.
    [[nodiscard]] Device device(unsigned index) const {
        Device device = nullptr;
        return handle_(index, &device) == kSuccess ? device : nullptr;
    }

    /// A field that cannot be asked stays empty: the GPU exists all the same.
    [[nodiscard]] Gpu gpu(Device device) const {
        Gpu gpu;
        gpu.uuid = uuid_of(device);
        PciInfo pci{};
        if (pci_info_(device, &pci) == kSuccess) {
            gpu.pci_address =
                fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
        }
        unsigned mode = 0;
        unsigned pending = 0;
        unsigned most = 0;
        if (mig_mode_(device, &mode, &pending) != kSuccess || mode != kMigIsOn ||
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

    [[nodiscard]] GpuHealth health(Device device) const {
        GpuHealth health;
        health.uuid = uuid_of(device);
        unsigned long long errors = 0;
        if (memory_errors_(device, kUncorrected, kSinceDriverLoad, &errors) == kSuccess) {
            health.uncorrected_errors = errors;
        }
        unsigned corrected = 0;
        unsigned uncorrected = 0;
        unsigned pending = 0;
        unsigned failed = 0;
        if (remapped_rows_(device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
            health.has_pending_remap = pending != 0;
            health.has_failed_remap = failed != 0;
        }
        Memory memory{};
        if (memory_(device, &memory) == kSuccess) {
            health.memory_bytes = memory.total;
            health.memory_used_bytes = memory.used;
        }
        return health;
    }

    template <typename IsSuspect>
    [[nodiscard]] GpuMemoryUse memory_use(Device device, unsigned index,
                                          const IsSuspect& is_suspect) const {
        GpuMemoryUse use;
        Memory memory{};
        if (memory_(device, &memory) != kSuccess) {
            return use;
        }
        use.bytes = memory.used;
        if (is_suspect(index, memory.used)) {
            for (const ListProcesses* list : {&computing_, &drawing_, &sharing_}) {
                add_holders(*list, device, use.holders);
            }
        }
        return use;
    }

    [[nodiscard]] GpuWork work(Device device) const {
        GpuWork work;
        Rates rates{};
        if (rates_(device, &rates) == kSuccess) {
            work.percent = rates.gpu;
        }
        Memory memory{};
        if (memory_(device, &memory) == kSuccess) {
            work.bytes = memory.used;
            work.total_bytes = memory.total;
        }
        unsigned milliwatts = 0;
        if (power_(device, &milliwatts) == kSuccess) {
            work.milliwatts = milliwatts;
        }
        add_holders(computing_, device, work.holders);
        return work;
    }

    [[nodiscard]] GpuUse use(Device device, std::uint64_t since) const {
        GpuUse use;
        use.pids = users_of(device, since);
        Rates rates{};
        use.is_memory_used = rates_(device, &rates) == kSuccess && rates.memory > 0;
        return use;
    }

private:
    using ListProcesses = LibraryFunction<Device, unsigned*, ProcessInfo*>;

    /// One that computes and draws is listed twice, with all of its memory.
    static void add_holders(const ListProcesses& list, Device device,
                            std::vector<GpuHolder>& holders) {
        unsigned count = 0;
        const int result = list(device, &count, nullptr);
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
        int result = samples_(device, nullptr, &count, since);
        if (result != kTooSmall && result != kNotFound && result != kSuccess) {
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

    [[nodiscard]] std::string uuid_of(Device device) const {
        Uuid text{};
        const bool is_told = uuid_(device, text.data(), text.size()) == kSuccess;
        text.back() = '\0';
        return is_told ? std::string{text.data()} : std::string{};
    }

    const std::unique_ptr<void, LibraryClose> library_{
        ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    void* const in_ = library_.get();
    const LibraryFunction<> start_{in_, "nvmlInit_v2"};
    const LibraryFunction<> stop_{in_, "nvmlShutdown"};
    const LibraryFunction<unsigned*> count_{in_, "nvmlDeviceGetCount_v2"};
    const LibraryFunction<unsigned, Device*> handle_{in_, "nvmlDeviceGetHandleByIndex_v2"};
    const LibraryFunction<Device, char*, unsigned> uuid_{in_, "nvmlDeviceGetUUID"};
    const LibraryFunction<Device, PciInfo*> pci_info_{in_, "nvmlDeviceGetPciInfo_v3"};
    const LibraryFunction<Device, unsigned*, unsigned*> mig_mode_{in_, "nvmlDeviceGetMigMode"};
    const LibraryFunction<Device, unsigned*> mig_count_{in_, "nvmlDeviceGetMaxMigDeviceCount"};
    const LibraryFunction<Device, unsigned, Device*> mig_handle_{
        in_, "nvmlDeviceGetMigDeviceHandleByIndex"};
    const LibraryFunction<Device, int, int, unsigned long long*> memory_errors_{
        in_, "nvmlDeviceGetTotalEccErrors"};
    const LibraryFunction<Device, unsigned*, unsigned*, unsigned*, unsigned*> remapped_rows_{
        in_, "nvmlDeviceGetRemappedRows"};
    const LibraryFunction<Device, Memory*> memory_{in_, "nvmlDeviceGetMemoryInfo"};
    const ListProcesses computing_{in_, "nvmlDeviceGetComputeRunningProcesses_v2"};
    const ListProcesses drawing_{in_, "nvmlDeviceGetGraphicsRunningProcesses_v2"};
    const ListProcesses sharing_{in_, "nvmlDeviceGetMPSComputeRunningProcesses_v2"};
    const LibraryFunction<Device, Rates*> rates_{in_, "nvmlDeviceGetUtilizationRates"};
    const LibraryFunction<Device, unsigned*> power_{in_, "nvmlDeviceGetPowerUsage"};
    const LibraryFunction<Device, ProcessSample*, unsigned*, unsigned long long> samples_{
        in_, "nvmlDeviceGetProcessUtilization"};
    const bool is_started_;
};

/// Returns the answer of `ask`, called with the driver, a GPU and its number, for each GPU; the
/// answer for a GPU that cannot be reached is empty.
template <typename Ask>
auto ask_all(const Ask& ask) {
    const Nvml nvml;
    const std::optional<unsigned> count = nvml.count();
    using Answer = decltype(ask(nvml, Device{}, 0U));
    std::optional<std::vector<Answer>> answers;
    if (count) {
        answers.emplace();
    }
    for (unsigned i = 0; i < count.value_or(0); ++i) {
        const Device device = nvml.device(i);
        answers->push_back(device == nullptr ? Answer{} : ask(nvml, device, i));
    }
    return answers;
}

}  // namespace

std::optional<std::vector<Gpu>> gpus_of_nvml() {
    return ask_all([](const Nvml& nvml, Device device, unsigned) { return nvml.gpu(device); });
}

std::optional<std::vector<GpuHealth>> gpu_health_of_nvml() {
    return ask_all([](const Nvml& nvml, Device device, unsigned) { return nvml.health(device); });
}

std::optional<std::vector<GpuUse>> gpu_use_of_nvml(std::uint64_t since) {
    return ask_all(
        [since](const Nvml& nvml, Device device, unsigned) { return nvml.use(device, since); });
}

std::optional<std::vector<GpuMemoryUse>> gpu_memory_of_nvml(
    const std::function<bool(unsigned number, std::uint64_t bytes)>& is_suspect) {
    return ask_all([&is_suspect](const Nvml& nvml, Device device, unsigned index) {
        return nvml.memory_use(device, index, is_suspect);
    });
}

std::optional<std::vector<GpuWork>> gpu_work_of_nvml() {
    return ask_all([](const Nvml& nvml, Device device, unsigned) { return nvml.work(device); });
}

std::shared_ptr<const void> keep_nvml_started() {
    return std::make_shared<const Nvml>();
}

}  // namespace ddprun::launcher
