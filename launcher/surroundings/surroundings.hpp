#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/network_interface.hpp"
#include "base/result.hpp"
#include "launcher/surroundings/gpu.hpp"
#include "launcher/surroundings/topology.hpp"

namespace ddprun::launcher {

/// All that planning may read outside the command line. The real one is real_surroundings.hpp;
/// tests make one up. Reading changes nothing.
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
    /// The folder of this program's own file, links resolved; empty: not known.
    [[nodiscard]] virtual std::string own_folder() const = 0;
    /// The folder of the name by which this program was started: of a link, where the link lies.
    /// Empty: not known.
    [[nodiscard]] virtual std::string started_folder() const = 0;
    /// Other machines may see what is in this folder: a network's file system.
    [[nodiscard]] virtual bool is_shared(const std::string& folder) const = 0;
    /// Both are folders, and by whatever names the same one.
    [[nodiscard]] virtual bool is_same_folder(const std::string& a, const std::string& b) const = 0;

    /// The names in a folder, unsorted; none where it cannot be read.
    [[nodiscard]] virtual std::vector<std::string> names_in(const std::string& folder) const = 0;
    /// The beginning of a small file, such as the kernel shows them; none where it cannot be read.
    [[nodiscard]] virtual std::optional<std::string> read_file(const std::string& path) const = 0;

    /// The beginning of a text that people or programs have written, a program or a list of hosts:
    /// Limits::text_bytes_max, more than they write; none where it cannot be read.
    [[nodiscard]] virtual std::optional<std::string> read_text(const std::string& path) const = 0;

    /// The name that this machine gives itself.
    [[nodiscard]] virtual std::string host_name() const = 0;
    [[nodiscard]] virtual unsigned user_id() const = 0;
    /// stdin and stdout are terminals.
    [[nodiscard]] virtual bool is_at_terminal() const = 0;
    /// CPUs of this process's affinity mask, sorted, at least one.
    [[nodiscard]] virtual std::vector<int> allowed_cpus() const = 0;
    [[nodiscard]] virtual std::vector<NetworkInterface> interfaces() const = 0;
    /// The GPUs that NVIDIA's driver reports; none without the driver. May take milliseconds, so it
    /// is asked only for what needs it.
    [[nodiscard]] virtual std::optional<std::vector<Gpu>> gpus_of_nvml() const = 0;
    /// The machine's CPUs; takes milliseconds too. Fails with a line for the user.
    [[nodiscard]] virtual Result<Topology> topology() const = 0;
};

}  // namespace ddprun::launcher
