#pragma once

#include <cstdint>
#include <string>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"

/// Checkpoints as a process sees them that does not train. Blocking; for any one thread.
namespace ddprun::worker {

struct CheckpointOutline {
    Generation generation;
    int world_size = 1;
    std::uint64_t bytes = 0;  ///< of all files that the manifest lists
    Milliseconds saved{0};    ///< since 1970, by the clock of the file system
};

/// Describes one checkpoint whose files all exist and have the right sizes. The tensors are not
/// read. The error says in one line which file is wrong and how.
[[nodiscard]] Result<CheckpointOutline> outline_of_checkpoint(const std::string& dir,
                                                              std::int64_t step);

/// Reads all files of one checkpoint and compares their checksums. Success means that every byte is
/// as it was written. Fails, too, if a training removes or replaces the checkpoint meanwhile.
[[nodiscard]] Result<void> verify_checkpoint(const std::string& dir, std::int64_t step,
                                             const OnRead& on_read);

}  // namespace ddprun::worker
