#include "worker_runtime/checkpoint/verification.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/folder.hpp"

namespace ddprun::worker {

Result<CheckpointOutline> outline_of_checkpoint(const std::string& dir, std::int64_t step) {
    const std::string folder = path_of(dir, step_folder_name(step));
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    const Result<Manifest> manifest = look_into(folder_fd->get(), folder, step);
    if (!manifest) {
        return manifest.error();
    }
    CheckpointOutline outline{.generation = manifest->info.generation,
                              .world_size = manifest->info.world_size};
    for (const ManifestFile& file : manifest->files) {
        outline.bytes += file.size;
    }
    const std::string name(kManifestName);
    struct stat status {};
    if (::fstatat(folder_fd->get(), name.c_str(), &status, 0) != 0) {
        return system_error(errno, path_of(folder, name) + " cannot be examined");
    }
    constexpr std::int64_t kMsPerSecond = 1000;
    constexpr std::int64_t kLatest = std::int64_t{1} << 40;  // A file may have any time.
    outline.saved = Milliseconds(
        std::clamp<std::int64_t>(status.st_mtim.tv_sec, -kLatest, kLatest) * kMsPerSecond);
    return outline;
}

Result<void> verify_checkpoint(const std::string& dir, std::int64_t step, const OnRead& on_read) {
    const std::string folder = path_of(dir, step_folder_name(step));
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    const Result<Manifest> manifest = read_manifest(folder_fd->get(), folder, step);
    if (!manifest) {
        return manifest.error();
    }
    for (const ManifestFile& listed : manifest->files) {
        const Result<OpenFile> file = open_listed(folder_fd->get(), folder, listed);
        if (!file) {
            return file.error();
        }
        const Result<std::string> checksum = hash_file(*file, on_read);
        if (!checksum) {
            return checksum.error();
        }
        if (const Result<void> checked = check_checksum(*file, listed, *checksum); !checked) {
            return checked.error();
        }
    }
    return {};
}

}  // namespace ddprun::worker
