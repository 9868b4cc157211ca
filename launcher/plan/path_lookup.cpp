#include "launcher/plan/path_lookup.hpp"

#include "base/search_path.hpp"

namespace ddprun::launcher {

PathLookup look_up_in_path(const std::string& name, const Surroundings& surroundings) {
    const std::string path =
        surroundings.variable("PATH").value_or(std::string{kDefaultSearchPath});
    PathLookup lookup;
    for (const std::string& candidate : places_in_path(path, name)) {
        if (surroundings.is_executable_file(candidate)) {
            lookup.executable = candidate;
            break;
        }
        if (!lookup.forbidden && surroundings.exists(candidate) &&
            !surroundings.is_directory(candidate)) {
            lookup.forbidden = candidate;
        }
    }
    return lookup;
}

}  // namespace ddprun::launcher
