#include "worker_runtime/checkpoint/checkpoint_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::worker {

namespace {

constexpr std::string_view kTensorsEnding = ".safetensors";

/// The files of one checkpoint that are shown, and what they hold.
class Shown {
public:
    /// Adds the tensors of one file. Its checksum is compared if `is_verified`.
    Result<void> add(int folder_fd, const std::string& folder, const ManifestFile& listed,
                     bool is_verified) {
        const Result<OpenFile> file = open_listed(folder_fd, folder, listed);
        if (!file) {
            return file.error();
        }
        Result<FileBytes> bytes = map_file(*file);
        if (!bytes) {
            return bytes.error();
        }
        if (is_verified) {
            Xxh3Hasher hasher;
            hasher.add(bytes->bytes());
            if (const auto checked = check_checksum(*file, listed, hasher.hex()); !checked) {
                return checked;
            }
        }
        storage_->push_back(*std::move(bytes));
        return listed.name.ends_with(kTensorsEnding) ? add_tensors(file->path) : Result<void>();
    }

    /// Once all files are added.
    Result<LoadedCheckpoint> finish(CheckpointInfo info) && {
        for (const auto& [name, tensor] : tensors_) {
            std::vector<Box> boxes;
            for (const StoredTensor::Part& part : tensor.parts) {
                boxes.push_back(part.box);
            }
            if (const Result<void> whole = check_cover(tensor.shape, boxes); !whole) {
                return Error{ErrorCode::BadMessage,
                             fmt::format("tensor {}: {}", in_quotes(name), whole.error().what)};
            }
        }
        return LoadedCheckpoint{.info = std::move(info),
                                .tensors = std::move(tensors_),
                                .storage = std::move(storage_)};
    }

private:
    Result<void> add_tensors(const std::string& path) {
        const auto bad = [&](const std::string& why) {
            return Error{ErrorCode::BadMessage, path + ": " + why};
        };
        Result<std::vector<TensorView>> tensors = parse_safetensors(storage_->back().bytes());
        if (!tensors) {
            return bad(tensors.error().what);
        }
        for (TensorView& tensor : *tensors) {
            const std::vector<std::int64_t>& shape =
                tensor.layout ? tensor.layout->global_shape : tensor.shape;
            StoredTensor& stored = tensors_[tensor.name];
            if (stored.parts.empty()) {
                stored.dtype = tensor.dtype;
                stored.shape = shape;
            } else if (stored.dtype != tensor.dtype || stored.shape != shape) {
                return bad(fmt::format("tensor {} is {} [{}] here and {} [{}] in another file",
                                       in_quotes(tensor.name), tensor.dtype, fmt::join(shape, ","),
                                       stored.dtype, fmt::join(stored.shape, ",")));
            }
            Box box = whole_box(tensor.shape);
            if (tensor.layout) {
                box.offsets = tensor.layout->offsets;
            }
            stored.parts.push_back({.box = std::move(box), .bytes = tensor.bytes});
        }
        return {};
    }

    std::map<std::string, StoredTensor> tensors_;
    std::shared_ptr<std::vector<FileBytes>> storage_ = std::make_shared<std::vector<FileBytes>>();
};

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
    Shown shown;
    for (std::size_t i = 0; i < manifest->files.size(); ++i) {
        const bool is_verified = i % share.readers == share.reader;
        const Result<void> added =
            shown.add(folder_fd->get(), folder, manifest->files[i], is_verified);
        if (!added) {
            return added.error();
        }
    }
    return std::move(shown).finish(std::move(manifest->info));
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
        if (step_of_aside_name(name, kPartialEnding)) {
            remove_all_of(path);
        } else if (const auto step = step_of_aside_name(name, kReplacedEnding)) {
            // Its writer died before the new one was in its place, or before it removed the old.
            const std::string place = path_of(dir, step_folder_name(*step));
            if (::access(place.c_str(), F_OK) == 0 || ::rename(path.c_str(), place.c_str()) != 0) {
                remove_all_of(path);
            }
        }
    }
}

}  // namespace ddprun::worker
