#include "launcher/plan/real_surroundings.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

namespace ddprun::launcher {

namespace {

constexpr int kCpusMax = 1 << 16;  // far above any kernel's NR_CPUS

struct CpuSetFree {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

struct LibraryClose {
    void operator()(void* library) const { ::dlclose(library); }
};

template <typename Function>
Function find_function(void* library, const char* name) {
    return reinterpret_cast<Function>(::dlsym(library, name));
}

std::optional<int> gpus_of_nvml() {
    // The library is never linked: machines without a driver do not have it.
    const std::unique_ptr<void, LibraryClose> library{
        ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!library) {
        return std::nullopt;
    }
    const auto start = find_function<int (*)()>(library.get(), "nvmlInit_v2");
    const auto count = find_function<int (*)(unsigned*)>(library.get(), "nvmlDeviceGetCount_v2");
    const auto stop = find_function<int (*)()>(library.get(), "nvmlShutdown");
    if (start == nullptr || count == nullptr || stop == nullptr || start() != 0) {
        return std::nullopt;
    }
    unsigned found = 0;
    const bool is_counted = count(&found) == 0;
    stop();
    return is_counted ? std::optional<int>{static_cast<int>(found)} : std::nullopt;
}

std::optional<int> gpus_of_device_files() {
    int found = 0;
    std::error_code error;
    for (std::filesystem::directory_iterator entry{"/dev", error}, end; !error && entry != end;
         entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        constexpr std::string_view kPrefix = "nvidia";
        const bool is_gpu = name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
                            std::all_of(name.begin() + kPrefix.size(), name.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
        found += is_gpu ? 1 : 0;
    }
    return found > 0 ? std::optional<int>{found} : std::nullopt;
}

}  // namespace

std::optional<std::string> RealSurroundings::variable(const std::string& name) const {
    const char* value = ::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>{value};
}

bool RealSurroundings::exists(const std::string& path) const {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0;
}

bool RealSurroundings::is_directory(const std::string& path) const {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool RealSurroundings::is_executable_file(const std::string& path) const {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
}

std::string RealSurroundings::working_directory() const {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::current_path(error);
    return error ? std::string{"/"} : path.string();
}

unsigned RealSurroundings::user_id() const {
    return ::getuid();
}

int RealSurroundings::allowed_cpus() const {
    // The kernel refuses a mask smaller than its own, whose size it does not tell.
    for (int cpus = CPU_SETSIZE; cpus <= kCpusMax; cpus *= 2) {
        const std::unique_ptr<cpu_set_t, CpuSetFree> set{CPU_ALLOC(cpus)};
        const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
        if (set && ::sched_getaffinity(0, bytes, set.get()) == 0) {
            return std::max(1, CPU_COUNT_S(bytes, set.get()));
        }
    }
    return 1;
}

std::optional<int> RealSurroundings::gpu_count() const {
    const std::optional<int> of_nvml = gpus_of_nvml();
    return of_nvml ? of_nvml : gpus_of_device_files();
}

}  // namespace ddprun::launcher
