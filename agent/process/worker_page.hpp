#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::agent {

/// The agent's end of the page that it shares with the workers of one generation here
/// (worker_runtime/contract/worker_page.hpp). The memory has no name: it is gone with this object
/// and the workers that map it, however the agent ends. The agent trusts a worker's bytes only
/// to be a number, a path, or a text of any bytes. Any thread; nothing blocks.
class WorkerPage {
public:
    /// Fails, leaving nothing, when the kernel gives no such memory.
    [[nodiscard]] static Result<std::unique_ptr<WorkerPage>> create(Generation generation,
                                                                    int slot_count,
                                                                    Instant publish_until);
    /// For create(): `header` lies at the start of a mapping of `file`.
    WorkerPage(UniqueFd file, WorkerPageHeader* header);
    ~WorkerPage();
    WorkerPage(const WorkerPage&) = delete;
    WorkerPage& operator=(const WorkerPage&) = delete;

    /// The memory, for others to hold.
    [[nodiscard]] int file() const { return file_.get(); }

    [[nodiscard]] Generation generation() const { return generation_; }
    [[nodiscard]] int slot_count() const { return slot_count_; }

    /// Workers that look save and leave. Asked again only the deadline changes.
    void ask_to_stop(int signal, Instant deadline);

    /// Workers may publish before `until`: Instant::max() for ever, Instant::min() not at all.
    void allow_publishing(Instant until);

    /// True if this worker reads the page. One of which this is false after ask_to_stop() may
    /// not have seen it; one that reads the page later does see it.
    [[nodiscard]] bool has_runtime(LocalRank local_rank) const;

    /// The last step this worker told; none before the first.
    [[nodiscard]] std::optional<std::uint64_t> progress(LocalRank local_rank) const;

    /// How far the worker has come, as it told; Instant::min(): not yet.
    struct Moments {
        Instant main = Instant::min();
        Instant group_ready = Instant::min();
        Instant resumed = Instant::min();
        Instant first_step = Instant::min();
        std::uint64_t first_number = kNoProgress;  ///< of that step
    };
    [[nodiscard]] Moments moments(LocalRank local_rank) const;

    /// How fast the worker is, as it told.
    struct Pace {
        std::uint64_t step = kNoProgress;
        Instant step_at = Instant::min();
        std::int64_t waited_ns = -1;        ///< for other ranks until then; -1: not told
        std::int64_t first_waited_ns = -1;  ///< until its first step
        std::uint64_t total_steps = kNoProgress;
        double loss = 0;  ///< the last one; not a number: none
    };
    /// Returns nothing if the worker reports no steps, or writes all the time.
    [[nodiscard]] std::optional<Pace> pace(LocalRank local_rank) const;

    /// How long its training has stood still for checkpoints, as it told.
    [[nodiscard]] Duration checkpointing(LocalRank local_rank) const;

    /// How its saves go, as it told; the members are those of WorkerPageSaves.
    struct Saves {
        std::uint64_t saved = 0;
        std::uint64_t step = kNoProgress;
        std::int64_t saved_ns = 0;
        std::uint64_t state_bytes = 0;
        std::int64_t stall_ns = 0;
        std::int64_t took_ns = 0;
        std::uint64_t places = 0;
        std::uint64_t failed = 0;
        std::uint64_t failed_step = kNoProgress;
        std::int64_t failed_ns = 0;
        std::string failed_reason;  ///< any bytes; empty: not told
        std::uint64_t late = 0;
        std::uint64_t in_time = 0;
        std::int64_t interval_ns = 0;
    };
    /// Returns nothing if the worker has never asked for a save, or writes all the time.
    [[nodiscard]] std::optional<Saves> saves(LocalRank local_rank) const;

    /// For LifeWatch: another number than before if there is news of the worker's saves.
    [[nodiscard]] std::uint64_t save_writes(LocalRank local_rank) const;

    /// Trained on by this process so far, as it told.
    [[nodiscard]] std::uint64_t samples(LocalRank local_rank) const;

    /// Returns where this worker's checkpoints are, as it told: an absolute path; empty: not told.
    [[nodiscard]] std::string checkpoints(LocalRank local_rank) const;

    /// For LifeWatch: where news about workers' lives and saves is rung, the word in which the
    /// kernel notes the death of the holder of this worker's lock, and the signal by which it said
    /// that it dies.
    [[nodiscard]] std::atomic<std::uint32_t>& bell() { return header_->bell; }
    [[nodiscard]] std::atomic<std::uint32_t>& life_word(LocalRank local_rank);
    [[nodiscard]] FatalSignal fatal_signal(LocalRank local_rank) const;

private:
    [[nodiscard]] WorkerPageSlot& slot(LocalRank local_rank) const;

    UniqueFd file_;
    WorkerPageHeader* header_;
    Generation generation_;  ///< these two are not read back: the memory is not ours alone
    int slot_count_;
};

}  // namespace ddprun::agent
