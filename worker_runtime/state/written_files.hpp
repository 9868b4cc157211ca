#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/state/saving.hpp"

/// The files that the ranks have written, and the parts of tensors in them, as the ranks send them
/// to each other.
namespace ddprun::worker {

/// A text with this rank's files and the places of its parts; or the error.
[[nodiscard]] Result<std::string> described(const CheckpointShare& share,
                                            const Result<std::vector<ManifestFile>>& files);

/// Rank 0: all files, by rank. `written` has every rank's text. Fails unless the parts of each
/// tensor are the whole, as a reader wants them; the error names tensor and ranks.
[[nodiscard]] Result<std::vector<ManifestFile>> files_of_all(
    const CheckpointShare& share, const std::vector<std::string>& written);

}  // namespace ddprun::worker
