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
#include "base/tagged.hpp"

/// Checkpoints on disk, without LibTorch. Every function blocks and may be called from any thread;
/// only one process of a job writes. One folder per checkpoint:
///
///     <dir>/step-<12 digits>/manifest.json                       what there is, sizes, checksums
///     <dir>/step-<12 digits>/model-00001-of-00001.safetensors    all tensors
///
/// worker_runtime/checkpoint/README.md is the specification.
namespace ddprun::worker {

/// One tensor's name, safetensors dtype ("F32", "BF16", "I64", …), shape and bytes (row-major,
/// little-endian). The bytes are not owned. In a loaded checkpoint they are aligned to the type.
struct TensorView {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;
};

/// The contents of the manifest beside the list of files.
struct CheckpointInfo {
    std::int64_t step = 0;
    Generation generation;
    int world_size = 1;
    std::map<std::string, std::string> values;  ///< small state: sampler position, learning rates …
};

/// A checkpoint whose files are complete and whose checksums are right. Owns what its views show,
/// in memory: what happens to the files afterwards does not matter.
class LoadedCheckpoint {
public:
    CheckpointInfo info;
    std::map<std::string, TensorView> tensors;  ///< by name

    std::shared_ptr<const void> storage;  ///< keeps the bytes of `tensors`
};

struct PublishOptions {
    /// Newest checkpoints that are kept, this one and older ones that look complete; at least 1.
    /// Publishing then removes older checkpoints; those with a higher step stay.
    int keep = 3;
    /// Asked right before the rename; while it is true nothing is published.
    std::function<bool()> is_isolated = [] { return false; };
    /// Told when the checkpoint is published but an older one could not be removed.
    std::function<void(const std::string&)> on_warning = [](const std::string& /*text*/) {};
};

/// Creates `dir` and what is missing above it, and writes and removes a file there: what would make
/// publish_checkpoint() fail in a folder that cannot be used is told before there is something to
/// lose. Only one process of a job may call it.
[[nodiscard]] Result<void> check_checkpoint_folder(const std::string& dir);

/// Writes aside, syncs, renames, syncs the folder; returns the checkpoint's path. Creates `dir` and
/// what is missing above it. Until the rename readers see the older state; on success the
/// checkpoint survives a loss of power; on failure nothing of the attempt is left. A checkpoint of
/// the same step is replaced. Refused when isolated. The tensors must not change meanwhile.
[[nodiscard]] Result<std::string> publish_checkpoint(const std::string& dir,
                                                     const CheckpointInfo& info,
                                                     const std::vector<TensorView>& tensors,
                                                     const PublishOptions& options = {});

/// The steps of the checkpoints in `dir`, newest first, whether valid or not; empty if there is no
/// such folder.
[[nodiscard]] Result<std::vector<std::int64_t>> list_checkpoints(const std::string& dir);

/// Reads and verifies one. The error says in one line which file is wrong and how: torn, truncated,
/// another checksum, no manifest, …; its code is NotFound only if a file or folder is missing.
[[nodiscard]] Result<LoadedCheckpoint> read_checkpoint(const std::string& dir, std::int64_t step);

/// Paths of the files that read_checkpoint() would read, in its order. Fails as it would, except
/// for errors in the bytes of the tensors, which are not read.
[[nodiscard]] Result<std::vector<std::string>> files_of_checkpoint(const std::string& dir,
                                                                   std::int64_t step);

/// Removes what writers that died have left aside, and puts back a checkpoint whose replacement
/// they did not finish. Only one process of a job may call it, before it publishes. A writer that
/// lives in spite of all, of an older generation, then fails to publish.
void remove_leftovers(const std::string& dir);

}  // namespace ddprun::worker
