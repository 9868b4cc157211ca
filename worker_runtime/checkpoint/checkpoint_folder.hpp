#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/layout.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

/// Checkpoints on disk, without LibTorch. Every function blocks and may be called from any thread.
/// worker_runtime/checkpoint/README.md is the specification.
namespace ddprun::worker {

/// One tensor of a checkpoint, in parts that together are the whole.
struct StoredTensor {
    struct Part {
        Box box;
        std::span<const std::byte> bytes;  ///< row-major, little-endian, aligned to the type
    };

    std::string dtype;                ///< as in a TensorView
    std::vector<std::int64_t> shape;  ///< of the whole
    std::vector<Part> parts;          ///< at least one; disjoint
};

/// A checkpoint whose files are complete; the checksums of those that this process verified are
/// right. Its files are mapped, so it takes no memory of the process's own, and it stays readable
/// after the files are renamed or removed.
class LoadedCheckpoint {
public:
    CheckpointInfo info;
    std::map<std::string, StoredTensor> tensors;  ///< by name

    std::shared_ptr<const void> storage;  ///< keeps the bytes of `tensors`
};

/// The steps of the checkpoints in `dir`, newest first, whether valid or not; empty if there is no
/// such folder.
[[nodiscard]] Result<std::vector<std::int64_t>> list_checkpoints(const std::string& dir);

/// Which of a checkpoint's files this process verifies, of `readers` processes that share the work:
/// each verifies every `readers`-th file.
struct ReadShare {
    std::size_t reader = 0;
    std::size_t readers = 1;
};

/// Maps all files of one checkpoint, and verifies the share's. The error says in one line which
/// file is wrong and how: torn, truncated, another checksum, no manifest, …; its code is NotFound
/// only if a file or folder is missing. Files that shrink later, which no writer of ours does, end
/// a process that reads there with SIGBUS.
[[nodiscard]] Result<LoadedCheckpoint> read_checkpoint(const std::string& dir, std::int64_t step,
                                                       const ReadShare& share = {});

/// Paths of the files that read_checkpoint() would read, in its order. Fails as it would, except
/// for errors in the bytes of the tensors, which are not read.
[[nodiscard]] Result<std::vector<std::string>> files_of_checkpoint(const std::string& dir,
                                                                   std::int64_t step);

/// Removes the unfinished folders of writers that died, and puts back a checkpoint whose
/// replacement they did not finish. Only one process of a job may call it, before it publishes. If
/// a writer of an older generation still runs, its publish() fails afterwards.
void remove_leftovers(const std::string& dir);

}  // namespace ddprun::worker
