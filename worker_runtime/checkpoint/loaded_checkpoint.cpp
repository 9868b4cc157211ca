#include "worker_runtime/checkpoint/loaded_checkpoint.hpp"

#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::worker {

namespace {

constexpr std::string_view kTensorsEnding = ".safetensors";

/// The files of one checkpoint that are shown, and what they hold.
class Shown {
public:
    /// Adds the tensors of one file. Its checksum is compared if `is_verified`.
    Result<void> add(const OpenListed& open, const ManifestFile& listed, bool is_verified) {
        const Result<OpenFile> file = open(listed);
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
            const std::string dimension =
                tensor.layout ? tensor.layout->mesh_dimension : std::string();
            StoredTensor& stored = tensors_[tensor.name];
            if (stored.parts.empty()) {
                stored.dtype = tensor.dtype;
                stored.shape = shape;
                stored.mesh_dimension = dimension;
            } else if (stored.dtype != tensor.dtype || stored.shape != shape ||
                       stored.mesh_dimension != dimension) {
                return bad(fmt::format("tensor {} is {} [{}]{} here and {} [{}]{} in another file",
                                       in_quotes(tensor.name), tensor.dtype, fmt::join(shape, ","),
                                       sharded_text(dimension), stored.dtype,
                                       fmt::join(stored.shape, ","),
                                       sharded_text(stored.mesh_dimension)));
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

}  // namespace

Result<LoadedCheckpoint> load_files(Manifest manifest, const OpenListed& open,
                                    const ReadShare& share) {
    Shown shown;
    for (std::size_t i = 0; i < manifest.files.size(); ++i) {
        const bool is_verified = i % share.readers == share.reader;
        if (const Result<void> added = shown.add(open, manifest.files[i], is_verified); !added) {
            return added.error();
        }
    }
    return std::move(shown).finish(std::move(manifest.info));
}

}  // namespace ddprun::worker
