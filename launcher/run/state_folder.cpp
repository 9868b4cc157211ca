#include "launcher/run/state_folder.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include "base/os/own_folder.hpp"

namespace ddprun::launcher {

Result<std::string> open_state_folder() {
    std::string path = fmt::format("/var/tmp/ddprun-{}", geteuid());
    if (Result<void> made = make_own_folder(path, "the state folder"); !made) {
        return made.error();
    }
    return path;
}

}  // namespace ddprun::launcher
