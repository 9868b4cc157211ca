#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// This process's environment, file system and machine. Not for use while another thread changes
/// the environment.
class RealSurroundings final : public Surroundings {
public:
    [[nodiscard]] std::optional<std::string> variable(const std::string& name) const override;
    [[nodiscard]] bool exists(const std::string& path) const override;
    [[nodiscard]] bool is_directory(const std::string& path) const override;
    [[nodiscard]] bool is_executable_file(const std::string& path) const override;
    [[nodiscard]] std::string working_directory() const override;
    [[nodiscard]] std::string own_folder() const override;
    [[nodiscard]] bool is_shared(const std::string& folder) const override;
    [[nodiscard]] bool is_same_folder(const std::string& a, const std::string& b) const override;
    [[nodiscard]] std::vector<NetworkInterface> interfaces() const override;
    [[nodiscard]] unsigned user_id() const override;
    [[nodiscard]] bool is_at_terminal() const override;
    [[nodiscard]] std::vector<std::string> names_in(const std::string& folder) const override;
    [[nodiscard]] std::optional<std::string> read_file(const std::string& path) const override;
    [[nodiscard]] std::optional<std::string> read_text(const std::string& path) const override;
    [[nodiscard]] std::string host_name() const override;
    [[nodiscard]] std::vector<int> allowed_cpus() const override;
    [[nodiscard]] std::optional<std::vector<Gpu>> gpus_of_nvml() const override;
    [[nodiscard]] Result<Topology> topology() const override;
};

}  // namespace ddprun::launcher
