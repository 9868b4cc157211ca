#include "base/os/file_identity.hpp"

#include <sys/stat.h>

#include <fmt/format.h>

namespace ddprun {

std::string file_identity(const std::string& path) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) {
        return {};
    }
    return fmt::format("{}:{}:{}:{}.{:09}", status.st_dev, status.st_ino, status.st_size,
                       status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

}  // namespace ddprun
