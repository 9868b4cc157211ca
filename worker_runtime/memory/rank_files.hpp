#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/checkpoint/loaded_checkpoint.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/tensor_view.hpp"
#include "worker_runtime/memory/checkpoint_memory.hpp"
#include "worker_runtime/memory/copies.hpp"

/// One rank's part of a checkpoint in memory. The ranks agree between these calls. Blocking; one
/// thread at a time.
namespace ddprun::worker {

/// A file to be. The tensors must not change while it is written.
struct TensorFile {
    std::string name;
    std::string prefix;  ///< names in the file lack it
    std::vector<TensorView> tensors;
};

/// The files that a rank has written.
struct RankFiles {
    std::vector<ManifestFile> files;
    std::string note;  ///< why the partner has no copy; empty: it has, or there is none
};

/// Writes this rank's files.
[[nodiscard]] Result<RankFiles> write_files(CheckpointMemory& memory,
                                            const std::vector<TensorFile>& files);

/// The first rank of a node writes the manifest of a step that this generation has written. Other
/// ranks do nothing. Refused if the node is isolated.
[[nodiscard]] Result<void> write_manifest(CheckpointMemory& memory, const PlaceOnNode& place,
                                          const std::string& manifest, bool is_isolated);

/// After write_manifest() on all ranks: the first rank of a node makes the step count there.
[[nodiscard]] Result<void> seal(CheckpointMemory& memory, const PlaceOnNode& place);

/// A node's files, as its first rank sends them to the others; no files for its other ranks. A
/// program that does not answer has no files.
[[nodiscard]] std::string copies_text(CheckpointMemory& memory, const PlaceOnNode& place);

/// The text of the candidate's manifest, on the first rank of the node that has it; empty on
/// other ranks.
[[nodiscard]] Result<std::string> read_manifest(CheckpointMemory& memory, const PlaceOnNode& place,
                                                const MemoryCandidate& candidate);

/// Copies this rank's share of the files that its node lacks. Returns the candidate's manifest, of
/// which `text` is the text.
[[nodiscard]] Result<Manifest> fetch_missing(CheckpointMemory& memory, const PlaceOnNode& place,
                                             const MemoryCandidate& candidate,
                                             const std::string& text,
                                             const std::vector<NodeCopies>& nodes);

/// Maps all files of the manifest, which this node has now; each of its ranks verifies a share.
[[nodiscard]] Result<LoadedCheckpoint> load_copies(CheckpointMemory& memory,
                                                   const PlaceOnNode& place,
                                                   const MemoryCandidate& candidate,
                                                   Manifest manifest);

/// After load_copies() on all ranks. The first rank of a node makes the step count there: this
/// generation's first save would forget it otherwise. It copies the manifest, too: without it the
/// step would be lost with the last node that has one. Returns a line for people if that has
/// failed.
[[nodiscard]] std::string keep(CheckpointMemory& memory, const PlaceOnNode& place,
                               const MemoryCandidate& candidate,
                               const std::vector<NodeCopies>& nodes);

}  // namespace ddprun::worker
