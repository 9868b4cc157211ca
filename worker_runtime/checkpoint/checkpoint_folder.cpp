#include "worker_runtime/checkpoint/checkpoint_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/pins.hpp"

namespace ddprun::worker {

namespace {

Result<LoadedCheckpoint> read_folder(const std::string& folder, std::int64_t step,
                                     const ReadShare& share) {
    // The descriptor holds this checkpoint even if another takes its name meanwhile.
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    Result<Manifest> manifest = read_manifest(folder_fd->get(), folder, step);
    if (!manifest) {
        return manifest.error();
    }
    const auto open = [&](const ManifestFile& listed) {
        return open_listed(folder_fd->get(), folder, listed);
    };
    return load_files(*std::move(manifest), open, share);
}

}  // namespace

Result<std::vector<std::int64_t>> list_checkpoints(const std::string& dir) {
    const Result<std::vector<std::string>> names = list_names(dir);
    if (!names) {
        if (::access(dir.c_str(), F_OK) != 0 && errno == ENOENT) {
            return std::vector<std::int64_t>{};
        }
        return names.error();
    }
    std::vector<std::int64_t> steps;
    for (const std::string& name : *names) {
        struct stat status {};
        const std::optional<std::int64_t> step = step_of_folder_name(name);
        if (step && ::stat(path_of(dir, name).c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
            steps.push_back(*step);
        }
    }
    std::sort(steps.rbegin(), steps.rend());
    return steps;
}

Result<LoadedCheckpoint> read_checkpoint(const std::string& dir, std::int64_t step,
                                         const ReadShare& share) {
    Result<LoadedCheckpoint> loaded =
        read_folder(path_of(dir, step_folder_name(step)), step, share);
    if (!loaded) {
        return Error{loaded.error().code, fmt::format("checkpoint of step {} cannot be used: {}",
                                                      step, loaded.error().what)};
    }
    return loaded;
}

std::uint64_t save_of_checkpoint(const std::string& dir, std::int64_t step) {
    const std::string folder = path_of(dir, step_folder_name(step));
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return 0;
    }
    const Result<Manifest> manifest = read_manifest(folder_fd->get(), folder, step);
    return manifest ? manifest->info.save : 0;
}

Result<std::vector<std::string>> files_of_checkpoint(const std::string& dir, std::int64_t step) {
    const Result<Manifest> manifest = look_into(dir, step);
    if (!manifest) {
        return manifest.error();
    }
    const std::string folder = path_of(dir, step_folder_name(step));
    std::vector<std::string> files = {path_of(folder, std::string(kManifestName))};
    for (const ManifestFile& file : manifest->files) {
        files.push_back(path_of(folder, file.name));
    }
    return files;
}

void remove_leftovers(const std::string& dir) {
    const Result<std::vector<std::string>> names = list_names(dir);
    if (!names) {
        return;
    }
    for (const std::string& name : *names) {
        const std::string path = path_of(dir, name);
        const auto partial = step_of_aside_name(name, kPartialEnding);
        const auto replaced = step_of_aside_name(name, kReplacedEnding);
        if (!partial && !replaced) {
            continue;
        }
        // A replaced one: its writer died before the new one was in its place, or before it removed
        // the old. A pinned one: its writer died after its last look for a pin.
        const std::string place = path_of(dir, step_folder_name(partial ? *partial : *replaced));
        const bool comes_back = (replaced || is_pinned(path)) &&
                                ::access(place.c_str(), F_OK) != 0 &&
                                ::rename(path.c_str(), place.c_str()) == 0;
        if (!comes_back) {
            remove_all_of(path);
        }
    }
}

}  // namespace ddprun::worker
