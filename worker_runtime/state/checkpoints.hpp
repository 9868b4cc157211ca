#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "worker_runtime/checkpoint/save_numbers.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/job/worker.hpp"
#include "worker_runtime/state/training_state.hpp"

namespace ddprun {

namespace worker {
class BackgroundSave;
struct LoadedCheckpoint;
class MemoryTier;
class OldCheckpoints;
struct CheckpointShare;
struct PublishOptions;
struct ReadShare;
}  // namespace worker

struct CheckpointsOptions {
    int keep = 3;  ///< newest checkpoints kept
    /// Above 0: checkpoints whose step is a multiple of it are kept, too.
    std::int64_t keep_every = 0;
    /// Above 1: of the saves by save_async() only those whose step is a multiple of it go to the
    /// disk. The others go to the memory of the nodes (ddprun's --memory-checkpoints), and are not
    /// made without that.
    std::int64_t disk_every = 1;
    /// How save_async() goes on when the save before it is still under way on a rank.
    enum class WhileSaving { Wait, Refuse };
    WhileSaving while_saving = WhileSaving::Wait;
    /// True: resume() connects the ranks for save_async() and takes the memory for its copies. A
    /// thread brings in its pages, so that the first save_async() is as fast as later ones. Without
    /// enough memory a line says so. A program that only calls save() does not need the memory.
    bool prepares_save_async = false;
    /// Gets a line when a checkpoint is passed over, a save beside the training fails, an old
    /// checkpoint cannot be removed, a resume that is not strict finds a difference, or a node that
    /// was asked to leave saves: on one rank, in the last case of that node. By default it goes to
    /// stderr. A save beside the training, and the removal of old checkpoints, call it on threads
    /// of their own.
    std::function<void(const std::string& line)> say;
};

struct ResumeOptions {
    /// False: state that the checkpoint lacks keeps its value, and stored state that this program
    /// lacks is ignored, each with a line. Another shape or type is an error in both cases.
    bool is_strict = true;
    /// The name here of the tensor or value that the checkpoint calls `name`; nothing: the same.
    std::function<std::string(const std::string& name)> rename;
};

/// The checkpoints of one job in a folder that all nodes see (docs/checkpoint-format.md is
/// the format). Every rank calls the same functions in the same order. The ranks share out the
/// tensors that are alike on all of them, and each writes its own parts. The worker and
/// the group outlive this. One thread.
class Checkpoints {
public:
    Checkpoints(std::string dir, const Worker& worker, ProcessGroup group,
                CheckpointsOptions options = {});
    /// Waits for a save beside the training.
    ~Checkpoints();
    Checkpoints(const Checkpoints&) = delete;
    Checkpoints& operator=(const Checkpoints&) = delete;

    /// Puts the newest checkpoint that every rank finds valid into `state` and returns its step;
    /// none if there is no checkpoint. One in the nodes' memory is taken unless the disk has a
    /// newer one, or a later save of the same step. Torn, truncated or damaged ones are passed over
    /// with a line that says why. Each node verifies every byte once, shared out over its workers,
    /// and reads what it needs from there. Fails, on every rank alike, when there are checkpoints
    /// and none is valid, when the folder cannot be made, written or read on any node, or when a
    /// valid one does not fit `state` on any one rank; `state` is unchanged then on all.
    [[nodiscard]] Result<std::optional<std::int64_t>> resume(TrainingState& state,
                                                             const ResumeOptions& options = {});

    /// Loads the models alone: each model of `state` gets that of the same name in the newest
    /// checkpoint that every rank finds valid, for inference or another training. Other contents
    /// are not read; nothing is written. Returns its step. Fails as resume() does, and when there
    /// is no checkpoint.
    [[nodiscard]] Result<std::int64_t> load_weights(TrainingState& state);

    /// Writes `state` as the checkpoint of `step`, after a save beside the training that is under
    /// way. Success on every rank means that it is on the disk. Fails on every rank alike, leaving
    /// nothing, when one cannot write, the worker of rank 0 is isolated, the group is broken, or
    /// gradients of no_sync() passes, which a checkpoint does not hold, are not averaged yet.
    [[nodiscard]] Result<void> save(std::int64_t step, const TrainingState& state);

    /// The same beside the training. Before it returns it copies all that the next forward pass may
    /// change: buffers, random states, values, added tensors. A thread copies parameters and
    /// optimizer state, which only a step changes, and then writes. A DistributedDataParallel waits
    /// for the copies at the end of a backward pass; without one call before_step(). Fails as
    /// save() does in what is known at once, and when memory for the copies is short or the save
    /// before is still under way and WhileSaving::Refuse was chosen. wait() returns the rest; a
    /// failure is also one line, and the training goes on.
    [[nodiscard]] Result<void> save_async(std::int64_t step, const TrainingState& state);

    /// Waits until an optimizer may step: a save beside the training has copied what the step
    /// changes. A DistributedDataParallel calls it at the end of a backward pass that averages, so
    /// save_async() belongs after a step. A step without such a pass needs this call.
    void before_step() const;

    /// Waits for the last save_async(), and returns its result: success when there was none.
    Result<void> wait();

private:
    /// A save that all ranks can make.
    struct Agreed;
    /// Collects `state` and shares it out, with one small exchange between the ranks. `beside`:
    /// has to have room for the copies. `is_busy`: this rank cannot save now, and the save is
    /// refused.
    [[nodiscard]] Result<Agreed> agree_on_save(std::int64_t step, const TrainingState& state,
                                               worker::BackgroundSave* beside, bool is_busy);
    /// These report a save to the agent, on the rank that leads it: the training asks for it, it
    /// begins, it has ended.
    void tell_asked() const;
    void tell_begun(std::int64_t step) const;
    void tell_ended(const Result<void>& done, std::uint64_t bytes, std::uint64_t places) const;
    /// Reports to the agent how long the training has stood still in act().
    template <typename Act>
    [[nodiscard]] Result<void> timed(const Act& act);
    /// `bytes`: of the state of all ranks, as far as it came.
    [[nodiscard]] Result<void> write(std::int64_t step, const TrainingState& state,
                                     std::uint64_t& bytes);
    void prepare_save_async(const TrainingState& state);
    /// How many ranks write tensors that all have.
    [[nodiscard]] int writers() const;
    /// Null if the nodes keep no checkpoints in memory. Every rank calls it.
    [[nodiscard]] Result<worker::MemoryTier*> memory();
    /// The checkpoint in memory that was put back; none: there is none to be had.
    [[nodiscard]] Result<std::optional<worker::SavedStep>> load_from_memory(
        TrainingState& state, const TrainingState::Comparison& how,
        const worker::SavedStep& at_least);
    /// The same of the checkpoint of `step` on the disk; none: a rank finds that it is not valid.
    [[nodiscard]] Result<std::optional<worker::SavedStep>> load_from_disk(
        TrainingState& state, const TrainingState::Comparison& how, std::int64_t step);
    /// Puts `loaded` into `state`, if it fits on all ranks.
    [[nodiscard]] Result<void> put_back(TrainingState& state, const TrainingState::Comparison& how,
                                        worker::LoadedCheckpoint loaded);
    [[nodiscard]] Result<void> begin_async(std::int64_t step, const TrainingState& state);
    [[nodiscard]] worker::PublishOptions publish_options() const;
    [[nodiscard]] bool has_all_workers() const;
    /// The files of a checkpoint that this rank verifies.
    [[nodiscard]] worker::ReadShare read_share() const;
    /// A line, on one rank of a node that was asked to leave.
    void say_time_left(std::int64_t step, Instant deadline) const;
    [[nodiscard]] Result<std::optional<worker::SavedStep>> load(
        TrainingState& state, const TrainingState::Comparison& how);
    /// Success if `own` is one on every rank; else, on all, an error that names the first rank.
    [[nodiscard]] Result<void> agreed(std::int64_t step, const char* what, const Result<void>& own);

    std::string dir_;
    const Worker& worker_;
    ProcessGroup group_;
    CheckpointsOptions options_;
    std::optional<Duration> last_save_;  ///< how long it took
    bool are_alike_ = true;              ///< the ranks' tensors, as far as is known
    worker::SaveNumbers numbers_;
    bool has_looked_for_memory_ = false;
    std::unique_ptr<worker::OldCheckpoints> old_;         ///< outlives the saves
    std::unique_ptr<worker::MemoryTier> memory_;          ///< outlives the saves into it
    std::unique_ptr<worker::BackgroundSave> background_;  ///< from the first save_async() on
};

}  // namespace ddprun
