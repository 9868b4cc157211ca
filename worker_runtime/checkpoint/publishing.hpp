#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/tensor_view.hpp"

/// A checkpoint that the processes of a job write together. One of them, the leader, begins it;
/// each writes files into it; the leader publishes it, when all have, or abandons it. Until it is
/// published no reader takes it. Blocking; for any one thread.
namespace ddprun::worker {

class OldCheckpoints;

struct PublishOptions {
    /// Newest checkpoints that are kept, this one and older ones that look complete; at least 1.
    /// Publishing then removes older checkpoints; those with a higher step, and pinned ones, stay.
    int keep = 3;
    /// Checkpoints whose step is a multiple of it stay as well; 0: none.
    std::int64_t keep_every = 0;
    /// Asked right before the rename; while it is true nothing is published.
    std::function<bool()> is_isolated = [] { return false; };
    /// Called when the checkpoint is published but an older one could not be removed.
    std::function<void(const std::string&)> on_warning = [](const std::string& /*text*/) {};
    /// Removes the older ones beside the next steps of the training; null: publish() removes them.
    OldCheckpoints* old = nullptr;
};

/// The folder of a checkpoint under way.
struct PartialCheckpoint {
    std::string dir;   ///< the folder of all checkpoints
    std::string name;  ///< its name in `dir`: ".step-000000000042.<16 hex digits>.partial"
    std::int64_t step = 0;
};

/// Leader: creates `dir` and what is missing above it, and the folder. Fails at once if the file
/// system of `dir` has less space than `bytes`, which all processes together will write.
[[nodiscard]] Result<PartialCheckpoint> begin_checkpoint(const std::string& dir, std::int64_t step,
                                                         std::uint64_t bytes);

/// Leader: as begin_checkpoint(), for probe() and abandon() alone. So a folder that a node cannot
/// use fails before the training has done any work.
[[nodiscard]] Result<PartialCheckpoint> begin_probe(const std::string& dir);

/// Any process: writes a file `name` there. Fails if this node does not see the leader's folder.
[[nodiscard]] Result<void> probe(const PartialCheckpoint& partial, const std::string& name);

/// begin_probe(), probe() and abandon() by one process alone.
[[nodiscard]] Result<void> check_checkpoint_folder(const std::string& dir);

/// The name of file `number` of `count`, from 1: "model-00002-of-00004.safetensors".
[[nodiscard]] std::string tensor_file_name(const std::string& kind, int number, int count);

/// Any process: writes `tensors` as the file `name`, synced to disk; the names in it lack `prefix`.
/// The tensors must not change meanwhile.
[[nodiscard]] Result<ManifestFile> write_tensors(const PartialCheckpoint& partial,
                                                 const std::string& name, const std::string& prefix,
                                                 const std::vector<TensorView>& tensors);

/// Any process: writes model.safetensors.index.json, as Hugging Face's libraries read it: the file
/// of each tensor, by its name there, and how many bytes all tensors have.
[[nodiscard]] Result<ManifestFile> write_model_index(
    const PartialCheckpoint& partial, const std::map<std::string, std::string>& file_by_tensor,
    std::uint64_t bytes);

/// Leader, when all `manifest.files` are written: writes the manifest, syncs the folder, renames
/// it, syncs `dir`, and removes checkpoints that are too old; returns the checkpoint's path.
/// Readers see the older state until the rename. On success the checkpoint survives a loss of
/// power, if the file system syncs folders. On failure nothing of it is left. A checkpoint of the
/// same step is replaced. Refused when isolated.
[[nodiscard]] Result<std::string> publish(const PartialCheckpoint& partial,
                                          const Manifest& manifest, const PublishOptions& options);

/// Leader: removes the partial checkpoint. Another process that still writes then fails.
void abandon(const PartialCheckpoint& partial);

/// The same by one process alone, which has all tensors: one file, and no index.
[[nodiscard]] Result<std::string> publish_checkpoint(const std::string& dir,
                                                     const CheckpointInfo& info,
                                                     const std::vector<TensorView>& tensors,
                                                     const PublishOptions& options = {});

/// The error of a save that has failed: it names `dir`, the step and the reason.
[[nodiscard]] Error not_written(const std::string& dir, std::int64_t step, const Error& why);

}  // namespace ddprun::worker
