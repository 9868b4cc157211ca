#include "base/os/own_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace ddprun {

Result<void> make_own_folder(const std::string& path, std::string_view what) {
    std::error_code ignored;  // mkdir reports what is wrong with them
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
        return system_error(errno, fmt::format("cannot make {} {}", what, path));
    }
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) {
        return system_error(errno, fmt::format("cannot use {} {}", what, path));
    }
    if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
        return Error{ErrorCode::PermissionDenied,
                     fmt::format("{} {} is not a folder of this user's alone (owner {}, mode "
                                 "{:o}); remove it or have it removed",
                                 what, path, status.st_uid, status.st_mode & 07777)};
    }
    return {};
}

}  // namespace ddprun
