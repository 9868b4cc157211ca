#pragma once

#include <optional>
#include <string>

#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// Where PATH has a name, and where it has it without the permission to execute it.
struct PathLookup {
    std::optional<std::string> executable;
    std::optional<std::string> forbidden;
};

[[nodiscard]] PathLookup look_up_in_path(const std::string& name, const Surroundings& surroundings);

}  // namespace ddprun::launcher
