#include "worker_runtime/checkpoint/pins.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/folder.hpp"

namespace ddprun::worker {

Result<void> pin_checkpoint(const std::string& dir, std::int64_t step) {
    const std::string folder = path_of(dir, step_folder_name(step));
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    const std::string name(kPinName);
    const UniqueFd pin(
        ::openat(folder_fd->get(), name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!pin.is_open()) {
        return system_error(errno, fmt::format("{} cannot be created", path_of(folder, name)));
    }
    if (const std::optional<Error> problem = sync_folder(folder_fd->get(), folder)) {
        return *problem;
    }
    // A training renames a checkpoint, looks for the pin once more, and then removes it.
    struct stat pinned {};
    struct stat there {};
    if (::fstat(folder_fd->get(), &pinned) != 0 || ::stat(folder.c_str(), &there) != 0 ||
        pinned.st_ino != there.st_ino) {
        return Error{ErrorCode::NotFound,
                     fmt::format("{} was removed or replaced meanwhile; look with ddpctl "
                                 "checkpoints list {}",
                                 folder, dir)};
    }
    return {};
}

Result<void> unpin_checkpoint(const std::string& dir, std::int64_t step) {
    const std::string folder = path_of(dir, step_folder_name(step));
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    const std::string name(kPinName);
    if (::unlinkat(folder_fd->get(), name.c_str(), 0) != 0 && errno != ENOENT) {
        return system_error(errno, fmt::format("{} cannot be removed", path_of(folder, name)));
    }
    return {};
}

bool is_pinned(const std::string& folder) {
    return ::access(path_of(folder, std::string(kPinName)).c_str(), F_OK) == 0;
}

}  // namespace ddprun::worker
