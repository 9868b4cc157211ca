#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/state/state_tensors.hpp"

/// A checkpoint that all ranks write together: what is the same everywhere is written once, shared
/// out over the ranks, and each rank writes its own parts.
namespace ddprun::worker {

/// The files that one rank writes.
struct CheckpointShare {
    struct File {
        std::string name;
        std::string prefix;  ///< names in the file lack it
        StateTensors tensors;
    };

    CheckpointInfo info;  ///< with rank 0's values
    std::vector<File> files;
    /// The file of each of the model's tensors, by its name there; empty if one is in parts.
    std::map<std::string, std::string> model_index;
    std::uint64_t model_bytes = 0;
    std::uint64_t own_bytes = 0;  ///< that this rank writes
    std::uint64_t all_bytes = 0;  ///< that all ranks write, as rank 0 sees it
};

[[nodiscard]] CheckpointShare share_of(CollectedState state, const CheckpointInfo& info, int rank,
                                       int world_size);

/// Every rank calls it, with its share in memory of the CPU that does not change meanwhile. Returns
/// on every rank when the checkpoint is published, or when nobody will publish it; the error, the
/// same on all, names the rank that could not write, and nothing of the checkpoint is left.
[[nodiscard]] Result<void> write_together(ProcessGroup& group, const std::string& dir,
                                          const CheckpointShare& share,
                                          const PublishOptions& options);

}  // namespace ddprun::worker
