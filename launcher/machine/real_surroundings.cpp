#include "launcher/machine/real_surroundings.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/limits.hpp"
#include "base/os/machine_identity.hpp"
#include "base/os/network_interfaces.hpp"
#include "base/os/read_files.hpp"
#include "base/os/shared_file_system.hpp"
#include "base/os/unique_fd.hpp"
#include "launcher/machine/hwloc_topology.hpp"
#include "launcher/machine/nvml.hpp"

namespace ddprun::launcher {

namespace {

/// The kernel shows no more than a page of most of its files.
constexpr std::size_t kFileBytesMax = 4096;

std::optional<std::string> read_beginning(const std::string& path, std::size_t bytes_max) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    // What is in a pipe could not be read a second time.
    if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return std::nullopt;
    }
    return read_part(file.get(), bytes_max);
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

std::string RealSurroundings::own_folder() const {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
    return error ? std::string{} : path.parent_path().string();
}

bool RealSurroundings::is_shared(const std::string& folder) const {
    return is_on_shared_file_system(folder);
}

bool RealSurroundings::is_same_folder(const std::string& a, const std::string& b) const {
    struct stat first {};
    struct stat second {};
    return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
           S_ISDIR(first.st_mode) && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

bool RealSurroundings::is_at_terminal() const {
    return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
}

std::vector<NetworkInterface> RealSurroundings::interfaces() const {
    return network_interfaces();
}

unsigned RealSurroundings::user_id() const {
    return ::getuid();
}

std::vector<std::string> RealSurroundings::names_in(const std::string& folder) const {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator entry{folder, error}, end; !error && entry != end;
         entry.increment(error)) {
        names.push_back(entry->path().filename().string());
    }
    return names;
}

std::optional<std::string> RealSurroundings::read_file(const std::string& path) const {
    return read_beginning(path, kFileBytesMax);
}

std::optional<std::string> RealSurroundings::read_text(const std::string& path) const {
    return read_beginning(path, Limits{}.text_bytes_max);
}

std::string RealSurroundings::host_name() const {
    return ddprun::host_name();
}

std::vector<int> RealSurroundings::allowed_cpus() const {
    std::vector<int> allowed;
    // The kernel refuses a mask smaller than its own, whose size it does not tell.
    for (int cpus = CPU_SETSIZE; cpus <= Limits{}.cpus_max && allowed.empty(); cpus *= 2) {
        std::vector<cpu_set_t> set(static_cast<std::size_t>(cpus / CPU_SETSIZE));
        const std::size_t bytes = set.size() * sizeof(cpu_set_t);
        if (::sched_getaffinity(0, bytes, set.data()) != 0) {
            continue;
        }
        for (int cpu = 0; cpu < cpus; ++cpu) {
            if (CPU_ISSET_S(cpu, bytes, set.data())) {
                allowed.push_back(cpu);
            }
        }
    }
    return allowed.empty() ? std::vector<int>{0} : allowed;
}

std::optional<std::vector<Gpu>> RealSurroundings::gpus_of_nvml() const {
    return launcher::gpus_of_nvml();
}

Result<Topology> RealSurroundings::topology() const {
    return read_topology("", allowed_cpus());
}

}  // namespace ddprun::launcher
