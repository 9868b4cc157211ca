#pragma once

#include <cstddef>

#include "base/instant.hpp"

namespace ddprun::worker {

/// The bounds of the worker runtime. A comment gives unit and reason; docs/limits.md is made from
/// them for users (scripts/limits_table.py).
struct RuntimeLimits {
    // The worker runtime.
    /// what goes on so long after a peer's connection has ended is cut: what came before is read,
    /// or fails by itself, within milliseconds; what is left would wait for its time-out
    Milliseconds loss_grace{1000};
    /// for the other ranks to notice the end of a peer's connection by themselves: a rank that cuts
    /// its own ones sooner is taken for the one that was lost
    Milliseconds notice_wait{100};
    /// for engines that another thread aborts: an abort takes milliseconds, and a program that goes
    /// on meanwhile may end, which an engine that is being aborted may not survive
    Milliseconds abort_wait{10'000};
    /// for the other ranks to report through the store that they wait for the same collective
    Milliseconds late_answer{1000};
    /// for the slowest rank to write its part of a checkpoint, or to read one, if the group's own
    /// time-out is shorter: 700 GB at 100 MB/s
    Milliseconds save_wait{7'200'000};
    /// NCCL's own time-out comes so much after a group's: it ends the process, the group's does not
    Milliseconds nccl_timeout_slack{600'000};
    /// Gloo's own time-out for joining comes so much before the group's: its text says more
    Milliseconds gloo_join_slack{1000};
    /// TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC, unless it is set: c10d waits four times as long for its
    /// flight recorder before it aborts a communicator that has reported an error
    Milliseconds nccl_dump_wait{250};
    /// files that the program may still open once the connections to other ranks are watched: as
    /// many as most systems grant a small job in all, less what it has open itself; half of what
    /// can be opened, if the hard limit is too low for that
    std::size_t descriptors_left = 512;
    /// for an answer of ddprun-memory, which copies a share to another node before it answers: 800
    /// GB in that time at its bound on bytes per second
    Milliseconds memory_reply_timeout{600'000};
    int gpus_per_rank_max = 16;    ///< of one rank: as many as the largest machines have
    int loader_workers_max = 256;  ///< threads of one DataLoader
    /// of one DataLoader, that are being made or wait to be trained on
    int loader_batches_max = 1024;
    int spawn_workers_max = 1024;         ///< of one spawn(): as many as a node has slots
    Milliseconds spawn_stop_grace{5000};  ///< for the other workers, once one has failed
    std::size_t spawn_error_bytes_max = std::size_t{4} << 10;  ///< kept of what a worker threw
};

}  // namespace ddprun::worker
