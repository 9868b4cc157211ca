#include "launcher/machine/real_surroundings.hpp"

#include <sched.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include "base/os/visit_folder.hpp"
#include "launcher/machine/hwloc_topology.hpp"
#include "launcher/machine/nvml.hpp"

namespace ddprun::launcher {

namespace {

/// The kernel shows no more than a page of most of its files.
constexpr std::size_t kFileBytesMax = 4096;

class RealSurroundings final : public Surroundings {
public:
    [[nodiscard]] std::optional<std::string> variable(const std::string& name) const override {
        const char* value = ::getenv(name.c_str());
        return value == nullptr ? std::nullopt : std::optional<std::string>{value};
    }

    [[nodiscard]] bool exists(const std::string& path) const override {
        struct stat status {};
        return ::stat(path.c_str(), &status) == 0;
    }

    [[nodiscard]] bool is_directory(const std::string& path) const override {
        struct stat status {};
        return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    }

    [[nodiscard]] bool is_executable_file(const std::string& path) const override {
        struct stat status {};
        return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
               ::access(path.c_str(), X_OK) == 0;
    }

    [[nodiscard]] std::string working_directory() const override {
        std::error_code error;
        const std::filesystem::path path = std::filesystem::current_path(error);
        return error ? std::string{"/"} : path.string();
    }

    [[nodiscard]] std::string own_folder() const override {
        std::error_code error;
        const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
        return error ? std::string{} : path.parent_path().string();
    }

    [[nodiscard]] std::string started_folder() const override {
        // The path that execve() was given: a shell has looked the name up in PATH.
        const auto address = static_cast<std::uintptr_t>(::getauxval(AT_EXECFN));
        if (address == 0) {
            return {};
        }
        const std::filesystem::path name(reinterpret_cast<const char*>(address));
        std::error_code error;
        const std::filesystem::path folder =
            std::filesystem::canonical(name.has_parent_path() ? name.parent_path() : ".", error);
        return error ? std::string{} : folder.string();
    }

    [[nodiscard]] bool is_shared(const std::string& folder) const override {
        return is_on_shared_file_system(folder);
    }

    [[nodiscard]] bool is_same_folder(const std::string& a, const std::string& b) const override {
        struct stat first {};
        struct stat second {};
        return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
               S_ISDIR(first.st_mode) && first.st_dev == second.st_dev &&
               first.st_ino == second.st_ino;
    }

    [[nodiscard]] bool is_at_terminal() const override {
        return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
    }

    [[nodiscard]] std::vector<NetworkInterface> interfaces() const override {
        return network_interfaces();
    }

    [[nodiscard]] unsigned user_id() const override { return ::getuid(); }

    [[nodiscard]] std::vector<std::string> names_in(const std::string& folder) const override {
        std::vector<std::string> names;
        visit_folder(folder, [&names](const std::filesystem::path& entry) {
            names.push_back(entry.filename().string());
        });
        return names;
    }

    [[nodiscard]] std::optional<std::string> read_file(const std::string& path) const override {
        return read_beginning(path, kFileBytesMax);
    }

    [[nodiscard]] std::optional<std::string> read_text(const std::string& path) const override {
        return read_beginning(path, Limits{}.text_bytes_max);
    }

    [[nodiscard]] std::string host_name() const override { return ddprun::host_name(); }

    [[nodiscard]] std::vector<int> allowed_cpus() const override {
        std::vector<int> allowed;
        // The kernel refuses a mask smaller than its own, whose size it does not report.
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

    [[nodiscard]] std::optional<std::vector<Gpu>> gpus_of_nvml() const override {
        return launcher::gpus_of_nvml();
    }

    [[nodiscard]] Result<Topology> topology() const override {
        return read_topology("", allowed_cpus());
    }
};

}  // namespace

std::unique_ptr<const Surroundings> real_surroundings() {
    return std::make_unique<RealSurroundings>();
}

}  // namespace ddprun::launcher
