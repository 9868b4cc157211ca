#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/layout.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

/// The tensors of a checkpoint whose files are mapped, wherever the files lie. Blocking; for any
/// one thread.
namespace ddprun::worker {

struct OpenFile;

/// One tensor of a checkpoint, in parts that together are the whole.
struct StoredTensor {
    struct Part {
        Box box;
        std::span<const std::byte> bytes;  ///< row-major, little-endian, aligned to the type
    };

    std::string dtype;                ///< as in a TensorView
    std::vector<std::int64_t> shape;  ///< of the whole
    std::string mesh_dimension;       ///< of its parts' Layout
    std::vector<Part> parts;          ///< at least one; disjoint
};

/// A checkpoint whose files are complete; the checksums of those that this process verified are
/// right. Its files are mapped, so it takes no memory of the process's own, and it stays readable
/// after the files are renamed or removed.
struct LoadedCheckpoint {
    CheckpointInfo info;
    std::map<std::string, StoredTensor> tensors;  ///< by name

    std::shared_ptr<const void> storage;  ///< keeps the bytes of `tensors`
};

/// Which of a checkpoint's files this process verifies, of `readers` processes that share the work:
/// each verifies every `readers`-th file.
struct ReadShare {
    std::size_t reader = 0;
    std::size_t readers = 1;
};

/// Opens a file that the manifest lists. A file of another size is an error.
using OpenListed = std::function<Result<OpenFile>(const ManifestFile& listed)>;

/// Maps all files of the manifest, and verifies the share's. The error names the file and what is
/// wrong with it.
[[nodiscard]] Result<LoadedCheckpoint> load_files(Manifest manifest, const OpenListed& open,
                                                  const ReadShare& share);

}  // namespace ddprun::worker
