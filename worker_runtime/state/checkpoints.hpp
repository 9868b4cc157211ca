#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/job/worker.hpp"
#include "worker_runtime/state/training_state.hpp"

namespace ddprun {

struct CheckpointsOptions {
    int keep = 3;  ///< newest checkpoints kept
    /// Told, on one rank, why a checkpoint is passed over or an old one cannot be removed; by
    /// default a line on stderr.
    std::function<void(const std::string& line)> say;
};

/// The checkpoints of one job in a folder that all nodes see (worker_runtime/checkpoint/README.md
/// is the format). Every rank calls the same functions in the same order; rank 0 writes. The worker
/// and the group outlive this. One thread.
class Checkpoints {
public:
    Checkpoints(std::string dir, const Worker& worker, ProcessGroup group,
                CheckpointsOptions options = {});

    /// Puts the newest checkpoint that every rank finds valid into `state` and returns its step;
    /// none if there is no checkpoint. Torn, truncated or damaged ones are passed over with a line
    /// that says why. Fails, on every rank alike, when there are checkpoints and none is valid,
    /// when the folder cannot be made, written or read, or when a valid one does not fit `state` on
    /// any one rank; `state` is unchanged then on all.
    [[nodiscard]] Result<std::optional<std::int64_t>> resume(TrainingState& state);

    /// Puts the networks of the newest checkpoint that every rank finds valid into those of `state`
    /// that have their names, and nothing else: to use them, or to train on in another way. The
    /// checkpoint's other contents are not read; nothing is written. Returns its step. Fails
    /// as resume() does, and when there is no checkpoint.
    [[nodiscard]] Result<std::int64_t> load_weights(TrainingState& state);

    /// Writes `state` as the checkpoint of `step`. Success on rank 0 means that it is on the disk;
    /// the other ranks do not wait for the disk. Fails on rank 0, leaving nothing, when it cannot
    /// be written or the worker is isolated, and on every rank when the group is broken, or when
    /// gradients of no_sync() passes, which a checkpoint does not hold, are not averaged yet.
    [[nodiscard]] Result<void> save(std::int64_t step, const TrainingState& state);

private:
    [[nodiscard]] Result<void> write(std::int64_t step, const TrainingState& state);
    [[nodiscard]] Result<std::optional<std::int64_t>> load(TrainingState& state,
                                                           TrainingState::Scope scope);
    /// Success if `own` is one on every rank; else, on all, an error that says where it is not.
    template <typename T>
    [[nodiscard]] Result<void> agreed(std::int64_t step, const char* what, const Result<T>& own);

    std::string dir_;
    const Worker& worker_;
    ProcessGroup group_;
    CheckpointsOptions options_;
};

}  // namespace ddprun
