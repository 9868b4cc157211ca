#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/state/memory_tier.hpp"
#include "worker_runtime/state/saving.hpp"
#include "worker_runtime/state/staging.hpp"

namespace ddprun::worker {

/// A checkpoint goes into the folder `dir`, into memory, or both.
struct SaveTargets {
    std::string dir;
    bool has_disk = true;
    MemoryTier* memory = nullptr;  ///< null: not into memory
};

/// One save at a time that goes on beside the training, on a thread of its own with a process group
/// of its own. Its functions are called on the training's thread, wait_for_copy() on any.
class BackgroundSave {
public:
    /// Takes the result of a save, and where the checkpoint is: bits kSavePlace….
    using OnEnd = std::function<void(const Result<void>& done, std::uint64_t places)>;

    /// `group` is the training's; `say` gets a line, on the save's thread, when a save has failed.
    BackgroundSave(ProcessGroup group, std::function<void(const std::string&)> say);
    /// Waits for the save.
    ~BackgroundSave();
    BackgroundSave(const BackgroundSave&) = delete;
    BackgroundSave& operator=(const BackgroundSave&) = delete;

    [[nodiscard]] bool is_under_way() const;

    /// After wait(): fails if the memory for the copies of `share`, as one of `processes` here, is
    /// too little.
    [[nodiscard]] Result<void> check_room(const CheckpointShare& share, int processes) const;

    /// After check_room() on all ranks: connects this rank for saves, and takes the memory. A
    /// thread then brings in its pages, until the next save begins. Every rank calls it.
    [[nodiscard]] Result<void> prepare(const CheckpointShare& share);

    /// False: this rank has no connections for saves, or a save has broken them.
    [[nodiscard]] bool is_connected();

    /// After check_room() on all ranks: copies all that the next forward pass may change, and
    /// begins the rest. Every rank calls it. `are_connected`: all ranks are; else they connect now.
    /// `on_end` is called once the save has ended, on its thread.
    [[nodiscard]] Result<void> begin(const SaveTargets& targets, CheckpointShare share,
                                     bool are_connected, const PublishOptions& options,
                                     OnEnd on_end);

    void wait_for_copy() const;
    /// Waits for the save that was begun last, and returns its result: success if there was none.
    Result<void> wait();

private:
    /// One save, from begin() to its end.
    struct Work {
        SaveTargets targets;
        PublishOptions options;
        CheckpointShare share;
        OnEnd on_end;
        std::uint64_t places = 0;  ///< where the checkpoint is so far
        Result<void> copied_now;
        std::promise<void> copied;
        std::promise<Result<void>> ended;
    };
    void end_paging();
    /// Every rank that has no connections for saves calls it, at the same time.
    [[nodiscard]] Result<void> connect();
    Result<void> run(Work& work, bool is_on_own_thread);
    /// Once all ranks have their copies. The result is the disk's, if that is a target.
    [[nodiscard]] Result<void> write(Work& work);

    ProcessGroup group_;
    std::function<void(const std::string&)> say_;
    std::optional<ProcessGroup> twin_;
    Staging staging_;
    std::atomic<bool> is_paging_cut_short_ = false;
    std::thread paging_;
    std::thread thread_;
    std::shared_future<void> copied_;
    std::shared_future<Result<void>> ended_;
};

}  // namespace ddprun::worker
