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

/// A checkpoint that all ranks write together: they share out the tensors that only an optimizer's
/// step changes, rank 0 writes the others, and each rank writes its own parts.
namespace ddprun::worker {

/// The files that one rank writes.
struct CheckpointShare {
    struct File {
        std::string name;
        std::string prefix;  ///< names in the file lack it
        StateTensors tensors;
    };

    CheckpointInfo info;      ///< with rank 0's values
    std::vector<File> files;  ///< rank 0's last one gets what combine() makes
    StateTensors rows;        ///< until combine(): this rank's
    StateTensors sums;        ///< likewise
    /// The file of each of the model's tensors, by its name there; empty if one is in parts.
    std::map<std::string, std::string> model_index;
    std::uint64_t model_bytes = 0;
    std::uint64_t all_bytes = 0;  ///< that all ranks write, as rank 0 sees it
};

/// Describes names, types and shapes of all tensors: ranks with the same text have the same
/// tensors.
[[nodiscard]] std::string outline_of(const CollectedState& state);

/// `writers`: ranks among which the tensors are shared out that only an optimizer's step changes; 1
/// if the ranks have different tensors: rank 0's are written then.
[[nodiscard]] CheckpointShare share_of(const CollectedState& state, const CheckpointInfo& info,
                                       int rank, int writers);

/// Every rank calls it. Gathers the rows of all ranks and adds up their sums, in place, into rank
/// 0's share. The tensors of `share` are in memory of the CPU.
[[nodiscard]] Result<void> combine(ProcessGroup& group, CheckpointShare& share);

/// Every rank calls it. The tensors of `share` are in memory of the CPU and must not change
/// meanwhile. Returns on every rank once the checkpoint is published or abandoned. The error is the
/// same on all ranks and names the rank that could not write; nothing of the checkpoint is left.
[[nodiscard]] Result<void> write_together(ProcessGroup& group, const std::string& dir,
                                          const CheckpointShare& share,
                                          const PublishOptions& options);

}  // namespace ddprun::worker
