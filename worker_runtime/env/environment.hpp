#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/contract/store_address.hpp"

namespace ddprun::worker {

/// A worker's place in its job, as its launcher has told it. The defaults are a world of one.
struct WorkerEnvironment {
    Rank rank;
    int world_size = 1;
    LocalRank local_rank;
    int local_world_size = 1;
    int group_rank = 0;
    int group_world_size = 1;
    int restart_count = 0;
    int max_restarts = 0;
    std::optional<StoreAddress> store;  ///< none: a world of one without a launcher
    bool serves_store = false;          ///< rank 0, which is told that no agent does

    // Only ddprun sets these.
    Generation generation{1};   ///< from torchrun: one more than the restarts
    JobId job;                  ///< empty: not told
    NodeId node;                ///< empty: not told
    std::string local_address;  ///< of this node towards the others; empty: not told
    int target_world_size = 1;  ///< of the largest size allowed; not told: world_size
    /// Group rank of the node that holds a copy of this node's memory checkpoints; none: no node
    /// does, or not told.
    std::optional<int> memory_partner;
    std::string start_reason;  ///< empty: the first generation, or not told
    LocalRank slot;            ///< of the page: as local_rank, but never virtual
    std::string page;          ///< path of the page shared with the agent; empty: none

    bool operator==(const WorkerEnvironment&) const = default;
};

/// The value of an environment variable; none if it is not set.
using Lookup = std::function<std::optional<std::string>(const std::string& key)>;

/// Reads the contract that worker_runtime/contract/worker_environment.hpp writes down. With none of
/// its keys set this is a world of one. Started by ddprun, every key must be there but
/// those of the target and the memory partner, which older ones do not set; by another launcher
/// that speaks torchrun's contract, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT must. InvalidArgument names the key, its value and what is wrong with it.
[[nodiscard]] Result<WorkerEnvironment> read_environment(const Lookup& lookup);

/// The same from this process's environment.
[[nodiscard]] Result<WorkerEnvironment> read_environment();

}  // namespace ddprun::worker
