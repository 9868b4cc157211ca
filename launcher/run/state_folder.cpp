#include "launcher/run/state_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

namespace ddprun::launcher {

Result<std::string> open_state_folder() {
    std::string path = fmt::format("/var/tmp/ddprun-{}", geteuid());
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
        return ddprun::system_error(errno, fmt::format("cannot make the state folder {}", path));
    }
    struct stat status {};
    if (lstat(path.c_str(), &status) != 0) {
        return ddprun::system_error(errno, fmt::format("cannot use the state folder {}", path));
    }
    if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 022) != 0) {
        return Error{ErrorCode::PermissionDenied,
                     fmt::format("the state folder {} is not a folder of this user's alone (owner "
                                 "{}, mode {:o}); remove it or have it removed",
                                 path, status.st_uid, status.st_mode & 07777)};
    }
    return path;
}

}  // namespace ddprun::launcher
