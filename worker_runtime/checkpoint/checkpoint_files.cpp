#include "worker_runtime/checkpoint/checkpoint_files.hpp"

#include <span>
#include <string_view>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/folder.hpp"

namespace ddprun::worker {

std::string path_of(const std::string& dir, const std::string& name) {
    return dir + (dir.ends_with('/') ? "" : "/") + name;
}

Result<Manifest> read_manifest(int folder_fd, const std::string& folder, std::int64_t step) {
    const std::string name(kManifestName);
    const Result<OpenFile> file = open_file(folder_fd, name, path_of(folder, name));
    if (!file) {
        return file.error();
    }
    if (file->size > kManifestBytesMax) {
        return Error{ErrorCode::BadMessage, fmt::format("{} has {} bytes, allowed are {}",
                                                        file->path, file->size, kManifestBytesMax)};
    }
    const Result<FileBytes> read = read_file(*file);
    if (!read) {
        return read.error();
    }
    const std::span<const std::byte> bytes = read->bytes();
    Result<Manifest> manifest =
        parse_manifest(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    if (!manifest) {
        return Error{manifest.error().code, file->path + ": " + manifest.error().what};
    }
    if (manifest->info.step != step) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("the manifest is of step {}", manifest->info.step)};
    }
    return manifest;
}

Result<OpenFile> open_listed(int folder_fd, const std::string& folder, const ManifestFile& listed) {
    Result<OpenFile> file = open_file(folder_fd, listed.name, path_of(folder, listed.name));
    if (file && file->size != listed.size) {
        return Error{ErrorCode::BadMessage, fmt::format("{} has {} bytes, the manifest says {}",
                                                        file->path, file->size, listed.size)};
    }
    return file;
}

Result<void> check_checksum(const OpenFile& file, const ManifestFile& listed,
                            const std::string& checksum) {
    if (checksum != listed.xxh3_128) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("{}: its checksum is {}, the manifest says {}", file.path,
                                 checksum, listed.xxh3_128)};
    }
    return {};
}

Result<Manifest> look_into(int folder_fd, const std::string& folder, std::int64_t step) {
    Result<Manifest> manifest = read_manifest(folder_fd, folder, step);
    if (!manifest) {
        return manifest.error();
    }
    for (const ManifestFile& file : manifest->files) {
        if (const Result<OpenFile> opened = open_listed(folder_fd, folder, file); !opened) {
            return opened.error();
        }
    }
    return manifest;
}

Result<Manifest> look_into(const std::string& dir, std::int64_t step) {
    const std::string folder = path_of(dir, step_folder_name(step));
    const Result<UniqueFd> folder_fd = open_folder(folder);
    return folder_fd ? look_into(folder_fd->get(), folder, step)
                     : Result<Manifest>(folder_fd.error());
}

}  // namespace ddprun::worker
