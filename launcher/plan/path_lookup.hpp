#pragma once

#include <optional>
#include <string>

#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// The paths that PATH has for a name: one that may be executed, and one that may not.
struct PathLookup {
    std::optional<std::string> executable;
    std::optional<std::string> forbidden;
};

[[nodiscard]] PathLookup look_up_in_path(const std::string& name, const Surroundings& surroundings);

}  // namespace ddprun::launcher
