#pragma once

#include <string>

#include "worker_runtime/worker.hpp"

/// A walk along the runtime's code for GPUs: scenarios of gpu_peer. A rank that finds something
/// wrong ends, see rank.hpp.
namespace ddprun::test {

/// Loads batches for the rank's GPU, before anything else has used a GPU.
void load_batches(const Worker& worker);

/// Calls all that the runtime offers with tensors on the CPU, on the GPU, and from a side stream of
/// the GPU: the results must be equal. Then saves a checkpoint in `folder` and resumes from it. For
/// two ranks.
void walk(const Worker& worker, ProcessGroup& group, const std::string& folder);

/// Calls `what` on rank 1, for which rank 0 does nothing, and says the error. `gather_much` is for
/// both ranks.
void lose_in(const std::string& what, const Worker& worker, ProcessGroup& group);

/// Clips gradients (`clip`), or steps with scaled ones, on both ranks, and says the error and its
/// kind. Then it waits for the end of stdin.
void break_in(const std::string& what, ProcessGroup& group);

/// Saves a sum over the ranks in `folder`, and says how that ended. Then it hangs.
void save_sum(const Worker& worker, ProcessGroup& group, const std::string& folder);

/// Begins each kind of operation on rank 1, on a sub-group of its own, which rank 0 never begins,
/// and says the error of each.
void wait_in_all(ProcessGroup& group);

/// Has a collective fail on a sub-group of ranks 0 and 2 of three, and says the error. `who` calls
/// it: `all` members, or rank 0 alone. Once the rank is told to, it sums up over the whole group,
/// and says how that ended.
void lose_in_part(const std::string& who, ProcessGroup& group);

}  // namespace ddprun::test
