#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/loaded_checkpoint.hpp"

/// Checkpoints on disk, without LibTorch. Every function blocks and may be called from any thread.
/// worker_runtime/checkpoint/README.md is the specification, docs/checkpoint-format.md the format.
namespace ddprun::worker {

/// The steps of the checkpoints in `dir`, newest first, whether valid or not; empty if there is no
/// such folder.
[[nodiscard]] Result<std::vector<std::int64_t>> list_checkpoints(const std::string& dir);

/// Maps all files of one checkpoint, and verifies the share's. The error says in one line which
/// file is wrong and how: torn, truncated, another checksum, no manifest, …; its code is NotFound
/// only if a file or folder is missing. Files that shrink later, which no writer of ours does, end
/// a process that reads there with SIGBUS.
[[nodiscard]] Result<LoadedCheckpoint> read_checkpoint(const std::string& dir, std::int64_t step,
                                                       const ReadShare& share = {});

/// Which save of the step the checkpoint is; 0, as of the first one, if its manifest cannot be
/// read.
[[nodiscard]] std::uint64_t save_of_checkpoint(const std::string& dir, std::int64_t step);

/// Paths of the files that read_checkpoint() would read, in its order. Fails as it would, except
/// for errors in the bytes of the tensors, which are not read.
[[nodiscard]] Result<std::vector<std::string>> files_of_checkpoint(const std::string& dir,
                                                                   std::int64_t step);

/// Removes the unfinished folders of writers that died, and puts back a checkpoint whose
/// replacement they did not finish. Only one process of a job may call it, before it publishes. If
/// a writer of an older generation still runs, its publish() fails afterwards.
void remove_leftovers(const std::string& dir);

}  // namespace ddprun::worker
