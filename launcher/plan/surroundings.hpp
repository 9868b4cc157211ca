#pragma once

#include <optional>
#include <string>

namespace ddprun::launcher {

/// All that planning may look at outside the command line. The real one is real_surroundings.hpp;
/// tests make one up. Looking changes nothing.
class Surroundings {
public:
    Surroundings() = default;
    virtual ~Surroundings() = default;
    Surroundings(const Surroundings&) = delete;
    Surroundings& operator=(const Surroundings&) = delete;

    /// An environment variable; none when it is not set.
    [[nodiscard]] virtual std::optional<std::string> variable(const std::string& name) const = 0;

    /// Something of this name exists, whatever it is. Relative paths start at working_directory().
    [[nodiscard]] virtual bool exists(const std::string& path) const = 0;
    [[nodiscard]] virtual bool is_directory(const std::string& path) const = 0;
    /// A regular file that this user may execute.
    [[nodiscard]] virtual bool is_executable_file(const std::string& path) const = 0;
    [[nodiscard]] virtual std::string working_directory() const = 0;

    [[nodiscard]] virtual unsigned user_id() const = 0;
    /// CPUs of this process's affinity mask, at least 1.
    [[nodiscard]] virtual int allowed_cpus() const = 0;
    /// GPUs of this machine, before CUDA_VISIBLE_DEVICES; none without a driver. May take
    /// milliseconds, so it is asked only for --nproc-per-node auto and gpu.
    [[nodiscard]] virtual std::optional<int> gpu_count() const = 0;
};

}  // namespace ddprun::launcher
