#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "base/os/unique_fd.hpp"

/// The part of files that the kernel has in memory.
namespace ddprun::test {

/// From 0 to 1; of an empty or unreadable file 1. The file's owner may ask.
[[nodiscard]] inline double share_in_memory(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0 || status.st_size == 0) {
        return 1;
    }
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) {
        return 1;
    }
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((bytes + page - 1) / page);
    (void)::mincore(memory, bytes, pages.data());
    (void)::munmap(memory, bytes);
    const auto there = std::count_if(pages.begin(), pages.end(),
                                     [](unsigned char flags) { return (flags & 1U) != 0; });
    return static_cast<double>(there) / static_cast<double>(pages.size());
}

/// True if the kernel has nothing of it in memory any more: a file in memory only (tmpfs), or one
/// that a process has mapped, stays.
[[nodiscard]] inline bool evict(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return file.is_open() && ::fdatasync(file.get()) == 0 &&
           ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) == 0 &&
           share_in_memory(path) == 0;
}

}  // namespace ddprun::test
