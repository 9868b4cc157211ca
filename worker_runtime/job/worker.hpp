#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/env/environment.hpp"
#include "worker_runtime/env/page.hpp"

namespace ddprun {

/// This process as a worker of a job: its place, its agent, and its orderly end. run() makes it.
/// Without a launcher it is a world of one. One thread, but for progress().
class Worker {
public:
    /// Fails, naming the variable, when a launcher has told only a part of what a worker must know.
    /// An agent's page that cannot be used is a line on stderr: then a stop comes as a signal.
    [[nodiscard]] static Result<Worker> from_environment();
    ~Worker();
    Worker(Worker&&) noexcept;
    Worker& operator=(Worker&&) noexcept;

    [[nodiscard]] int rank() const { return environment().rank.value(); }
    [[nodiscard]] int world_size() const { return environment().world_size; }
    [[nodiscard]] int local_rank() const { return environment().local_rank.value(); }
    [[nodiscard]] int local_world_size() const { return environment().local_world_size; }
    /// Number of the attempt of the whole job, from 1; only grows.
    [[nodiscard]] std::uint64_t generation() const { return environment().generation.value(); }
    /// Worker failures that have restarted the job so far.
    [[nodiscard]] int restart_count() const { return environment().restart_count; }
    /// Why this generation was started, for people; empty for the first.
    [[nodiscard]] const std::string& start_reason() const { return environment().start_reason; }
    /// Everything that the launcher has told.
    [[nodiscard]] const worker::WorkerEnvironment& environment() const;

    /// Joins all workers of the generation. Called once, by every rank; finish() and leave() end
    /// it.
    [[nodiscard]] Result<ProcessGroup> process_group(Backend backend = Backend::Auto,
                                                     const ProcessGroupOptions& options = {});

    /// Tells the agent that `step` is done. `samples`: what this rank has trained on since the last
    /// call; they are added up. A few words in memory: cheap enough for every step.
    void progress(std::int64_t step, std::int64_t samples = 0,
                  std::optional<double> loss = std::nullopt);

    /// Adds `value` at `step` to the curve `name`, for TensorBoard: rank 0 writes, on other ranks
    /// nothing happens. The folder is $DDPRUN_TENSORBOARD_DIR, else runs/<job> in the working
    /// directory, the same for all generations: after a resume the curves go on from its step, and
    /// what came later is dropped. A folder that cannot be written is one line on stderr. The
    /// curve "loss" is also what ddprun shows as the loss.
    void scalar(const std::string& name, double value, std::int64_t step);

    /// Tells how many steps the run will have in all, counted as progress() does: so that ddprun
    /// shows how much time is left.
    void total_steps(std::int64_t steps);

    /// Notes the time at which a checkpoint was loaded. Checkpoints::resume() does.
    void resumed() const;

    /// Notes that training has stood still so long for a checkpoint. Checkpoints::save() does.
    void checkpointing(Duration time) const;

    /// Report how saves go (docs/events.md), on the rank that leads them: the training asks for
    /// one, it begins, the training goes on, it has ended; any thread. Checkpoints does.
    void save_asked(bool is_late) const;
    void save_begun(std::int64_t step) const;
    void save_stalled(Duration time) const;
    void save_ended(const worker::SaveEnd& end) const;

    /// Tells the agent that checkpoints are in the folder `dir`: when a failure is known, the
    /// newest is read ahead (docs/warm.md). Checkpoints does.
    void checkpoints_in(const std::string& dir) const;

    /// True when the job is asked to save and leave. Every rank calls it after each step, and all
    /// get the same answer at the same step. The question travels with the gradients of a
    /// DistributedDataParallel on CPUs; otherwise (GPUs, no such pass since the last call) by an
    /// all_reduce of one word while the next step is computed, and is answered one step later.
    /// False when the group is broken: the next collective says why. False also while gradients of
    /// no_sync() passes wait for the pass that averages them: a checkpoint does not hold them.
    [[nodiscard]] bool stop_requested();

    /// When those that have not left are killed; none if the agent has asked for nothing (it may
    /// have asked another node's).
    [[nodiscard]] std::optional<Instant> stop_deadline() const;

    /// True while nothing may be published: this node may have been replaced already.
    [[nodiscard]] bool is_isolated() const;

    /// The orderly end of a training that is done: waits for all ranks and lets the group go.
    /// Returns main's exit code, 0. Throws when a peer has died: run() reports it.
    [[nodiscard]] int finish();

    /// The orderly end after stop_requested(): as finish(), with exit code 75, "left when asked".
    /// `saved` is the checkpoint's fate; if that has failed it throws, once the others can go.
    [[nodiscard]] int leave(const Result<void>& saved);

private:
    struct State;
    explicit Worker(std::unique_ptr<State> state);

    std::unique_ptr<State> state_;
};

}  // namespace ddprun
