#include "base/os/file_identity.hpp"

#include <sys/stat.h>

#include <fmt/format.h>

namespace ddprun {

namespace {

bool is_same(const struct stat& one, const struct stat& other) {
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

std::string file_identity(const std::string& path) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) {
        return {};
    }
    return fmt::format("{}:{}:{}:{}.{:09}", status.st_dev, status.st_ino, status.st_size,
                       status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

bool is_same_file(int one, int other) {
    struct stat first {};
    struct stat second {};
    return fstat(one, &first) == 0 && fstat(other, &second) == 0 && is_same(first, second);
}

bool is_same_file(int one, const std::string& path) {
    struct stat first {};
    struct stat second {};
    return fstat(one, &first) == 0 && stat(path.c_str(), &second) == 0 && is_same(first, second);
}

}  // namespace ddprun
