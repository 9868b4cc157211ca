#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/split.hpp"

namespace ddprun {

/// The folders that are searched if PATH is not set.
inline constexpr std::string_view kDefaultSearchPath = "/usr/local/bin:/usr/bin:/bin";

/// The files that `name` may be by this PATH, in the order in which they are tried. An empty folder
/// in it is the working folder, by POSIX: `./name`.
[[nodiscard]] inline std::vector<std::string> places_in_path(std::string_view path,
                                                             std::string_view name) {
    std::vector<std::string> places;
    for (const std::string_view folder : split(path, ':')) {
        places.push_back(std::string(folder.empty() ? "." : folder) + "/" + std::string(name));
    }
    return places;
}

}  // namespace ddprun
