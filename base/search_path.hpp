#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

/// What is searched where PATH is not set.
inline constexpr std::string_view kDefaultSearchPath = "/usr/local/bin:/usr/bin:/bin";

/// The files that `name` may be by this PATH, in the order in which they are tried. An empty folder
/// in it is the working folder, by POSIX: `./name`.
[[nodiscard]] inline std::vector<std::string> places_in_path(std::string_view path,
                                                             std::string_view name) {
    std::vector<std::string> places;
    for (;;) {
        const std::size_t colon = path.find(':');
        const std::string_view folder = path.substr(0, colon);
        places.push_back(std::string(folder.empty() ? "." : folder) + "/" + std::string(name));
        if (colon == std::string_view::npos) {
            return places;
        }
        path.remove_prefix(colon + 1);
    }
}

}  // namespace ddprun
