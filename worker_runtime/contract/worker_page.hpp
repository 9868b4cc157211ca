#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

/// The memory that an agent shares with those of its workers that have the worker runtime, or were
/// started with `--watch preload`: one page per generation and node, a header written by the agent,
/// then one slot per worker, behind all slots one set of figures per worker, behind these where its
/// checkpoints are, how fast it is, how its saves go, and why one has failed, all written by that
/// worker.
/// Only a death and a save wake a process: a worker reads at each step, the agent when it needs to
/// know.
/// The agent passes a path to it in DDPRUN_PAGE; agent and worker may come from different builds,
/// so layout and version are a contract (README.md here holds the table). Versions only append: a
/// worker uses of a page what both know. scripts/page_layout.py makes Python's constants from this.
namespace ddprun {

inline constexpr std::uint64_t kWorkerPageMagic = 0x4547415072706464;  ///< "ddprPAGE" in memory
inline constexpr std::uint32_t kWorkerPageVersion = 10;
inline constexpr std::uint32_t kWorkerPageVersionMin = 3;
inline constexpr std::uint32_t kWorkerPageVersionWithFigures = 4;
inline constexpr std::uint32_t kWorkerPageVersionWithCheckpoints = 6;
inline constexpr std::uint32_t kWorkerPageVersionWithPace = 7;
inline constexpr std::uint32_t kWorkerPageVersionWithCheckpointing = 8;
inline constexpr std::uint32_t kWorkerPageVersionWithSaves = 9;
inline constexpr std::uint32_t kWorkerPageVersionWithReason = 10;
inline constexpr std::uint64_t kNoProgress = ~std::uint64_t{0};
inline constexpr std::size_t kCheckpointsPathBytesMax = 1020;  ///< longer ones are not told
inline constexpr std::size_t kSaveReasonBytesMax = 508;  ///< longer ones are cut, and end with `…`
/// Bits of WorkerPageSaves::places.
inline constexpr std::uint64_t kSavePlaceDisk = 1;     ///< it survives a loss of power
inline constexpr std::uint64_t kSavePlaceMemory = 2;   ///< in memory of the ranks' own nodes
inline constexpr std::uint64_t kSavePlacePartner = 4;  ///< in memory of another node, too
inline constexpr std::int64_t kPublishForEver = std::numeric_limits<std::int64_t>::max();

/// Written by the agent, before the workers start unless a comment says otherwise.
struct alignas(64) WorkerPageHeader {
    std::uint64_t magic = kWorkerPageMagic;
    std::uint32_t version = kWorkerPageVersion;
    std::uint32_t slot_count = 0;  ///< slots that follow, one per local rank
    std::uint64_t generation = 0;

    /// A worker may publish while its own CLOCK_MONOTONIC is before this: an agent that is held up
    /// need not wake for its workers to fall silent. kPublishForEver: no end; 0: nothing may be
    /// published. Changes at any time.
    std::atomic<std::int64_t> publish_until_ns{0};
    /// When they are killed, or others that save with them are gone, on CLOCK_MONOTONIC.
    std::atomic<std::int64_t> stop_deadline_ns{0};
    /// The signal by which the workers are asked to save and leave; 0: they are not. Set once,
    /// after stop_deadline_ns.
    std::atomic<std::uint32_t> stop_signal{0};
    /// A futex: raised, and woken, when there is something new about a worker's death, its lock or
    /// its saves.
    std::atomic<std::uint32_t> bell{0};
};

/// A signal that ends a worker, told by its own handler before the kernel begins to write a core.
struct alignas(8) FatalSignal {  // else clang calls a library to store it, which a handler may not
    std::int32_t pid = 0;        ///< as the worker knows itself; 0: none told
    std::int32_t signal = 0;
};

/// Written by its worker, at any time.
struct alignas(64) WorkerPageSlot {
    /// 1 from the moment when the worker reads the page: it needs no signal to learn of a stop.
    std::atomic<std::uint32_t> has_runtime{0};
    /// The last step the worker has told; kNoProgress before the first.
    std::atomic<std::uint64_t> progress{kNoProgress};
    std::atomic<FatalSignal> fatal_signal{FatalSignal{}};
    /// A pthread_mutex_t, robust and shared between processes, made by the agent and held by the
    /// worker as long as it lives. glibc has the owner's thread id in its first word, a futex in
    /// which the kernel notes the owner's death, and wakes a waiter, before it frees its memory.
    alignas(64) std::array<std::byte, 64> life_lock{};
};

/// Written by its worker, at any time; from version 4 on. Times are nanoseconds on CLOCK_MONOTONIC,
/// 0: not yet.
struct alignas(64) WorkerPageFigures {
    std::atomic<std::int64_t> main_ns{0};         ///< the program has begun
    std::atomic<std::int64_t> group_ready_ns{0};  ///< all ranks are connected
    std::atomic<std::int64_t> resumed_ns{0};      ///< the checkpoint is loaded
    std::atomic<std::int64_t> first_step_ns{0};   ///< the first step of this process is done
    std::atomic<std::uint64_t> samples{0};        ///< trained on by this process so far
    /// The loss of the last step that reported one; not a number if no step has.
    std::atomic<double> loss{std::numeric_limits<double>::quiet_NaN()};
    /// The number of that first step, before its time; kNoProgress: not told. From version 5 on;
    /// in a page of version 4 no process reads it.
    std::atomic<std::uint64_t> first_step{kNoProgress};
};

/// Written by its worker, at any time; from version 6 on. The path, from the root, of a file, or of
/// a folder with the newest checkpoint in it.
struct alignas(64) WorkerPageCheckpoints {
    std::atomic<std::uint32_t> path_bytes{0};  ///< 0: not told, or being written
    std::array<std::atomic<char>, kCheckpointsPathBytesMax> path{};
};

/// Written by its worker with each step; from version 7 on. Times are nanoseconds.
struct alignas(64) WorkerPagePace {
    /// Odd while the others are written: who reads that, or another number afterwards, reads again.
    std::atomic<std::uint64_t> writes{0};
    std::atomic<std::uint64_t> step{kNoProgress};  ///< the last one told, as in the slot
    std::atomic<std::int64_t> step_ns{0};          ///< when, on CLOCK_MONOTONIC
    /// How long it has waited for other ranks until then, in all; -1: not told.
    std::atomic<std::int64_t> waited_ns{-1};
    std::atomic<std::int64_t> first_waited_ns{-1};  ///< the same until its first step
    /// How many steps the run will have; kNoProgress: not told.
    std::atomic<std::uint64_t> total_steps{kNoProgress};
    std::atomic<std::int64_t> waiting_ns{0};  ///< waited so far; added to at any time
    /// Its training has stood still for checkpoints so long, since its first step; added to at any
    /// time. From version 8 on; in a page of version 7 no process reads it.
    std::atomic<std::int64_t> checkpointing_ns{0};
};

/// Written by the worker that leads saves, rank 0 of their group, when one is asked for, begins and
/// ends; from version 9 on. Times are nanoseconds, those of moments on CLOCK_MONOTONIC.
struct alignas(64) WorkerPageSaves {
    /// As WorkerPagePace::writes, of all that follows.
    std::atomic<std::uint64_t> writes{0};
    std::atomic<std::uint64_t> begun_step{kNoProgress};  ///< of the last save that was begun
    std::atomic<std::int64_t> begun_ns{0};               ///< when; 0: none was
    std::atomic<std::uint64_t> saved{0};                 ///< saves that are complete
    std::atomic<std::uint64_t> step{kNoProgress};        ///< of the last of these, as the next five
    std::atomic<std::int64_t> saved_ns{0};               ///< when it was complete
    std::atomic<std::uint64_t> state_bytes{0};           ///< of the state that all ranks have saved
    std::atomic<std::int64_t> stall_ns{0};               ///< training stood still so long for it
    std::atomic<std::int64_t> took_ns{0};                ///< from its begin until it was complete
    std::atomic<std::uint64_t> places{0};                ///< where it is: bits kSavePlace…
    std::atomic<std::uint64_t> failed{0};                ///< saves that have failed
    std::atomic<std::uint64_t> failed_step{kNoProgress};  ///< of the last of these
    std::atomic<std::int64_t> failed_ns{0};               ///< when that was known
    /// So many of the last saves, one after the other, were asked for while the one before was
    /// under way.
    std::atomic<std::uint64_t> late{0};
    /// So many were asked for after the one before had ended. One of these two is 0.
    std::atomic<std::uint64_t> in_time{0};
    std::atomic<std::int64_t> interval_ns{0};  ///< between the last two that were asked for
};

/// Why the save of WorkerPageSaves::failed_step has failed; from version 10 on. Written by the same
/// worker under the same WorkerPageSaves::writes.
struct alignas(64) WorkerPageReason {
    std::atomic<std::uint32_t> text_bytes{0};  ///< 0: not told
    std::array<std::atomic<char>, kSaveReasonBytesMax> text{};
};

static_assert(sizeof(WorkerPageHeader) == 64 && sizeof(WorkerPageSlot) == 128 &&
              sizeof(WorkerPageFigures) == 64 && sizeof(WorkerPageCheckpoints) == 1024 &&
              sizeof(WorkerPagePace) == 64 && sizeof(WorkerPageSaves) == 128 &&
              sizeof(WorkerPageReason) == 512);
static_assert(offsetof(WorkerPageSlot, life_lock) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<FatalSignal>::is_always_lock_free &&
              std::atomic<double>::is_always_lock_free && std::atomic<char>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

/// The slots behind the header of a mapped page, by local rank.
[[nodiscard]] inline WorkerPageSlot* worker_page_slots(WorkerPageHeader* header) {
    return static_cast<WorkerPageSlot*>(static_cast<void*>(header + 1));
}

/// The figures behind the slots, by local rank; of a page of version 4 or newer.
[[nodiscard]] inline WorkerPageFigures* worker_page_figures(WorkerPageHeader* header,
                                                            std::uint32_t slot_count) {
    return static_cast<WorkerPageFigures*>(
        static_cast<void*>(worker_page_slots(header) + slot_count));
}

/// The paths of checkpoints, behind the figures, by local rank; of a page of version 6 or newer.
[[nodiscard]] inline WorkerPageCheckpoints* worker_page_checkpoints(WorkerPageHeader* header,
                                                                    std::uint32_t slot_count) {
    return static_cast<WorkerPageCheckpoints*>(
        static_cast<void*>(worker_page_figures(header, slot_count) + slot_count));
}

/// How fast the workers are, behind these, by local rank; of a page of version 7 or newer.
[[nodiscard]] inline WorkerPagePace* worker_page_pace(WorkerPageHeader* header,
                                                      std::uint32_t slot_count) {
    return static_cast<WorkerPagePace*>(
        static_cast<void*>(worker_page_checkpoints(header, slot_count) + slot_count));
}

/// How the workers' saves go, behind these, by local rank; of a page of version 9 or newer.
[[nodiscard]] inline WorkerPageSaves* worker_page_saves(WorkerPageHeader* header,
                                                        std::uint32_t slot_count) {
    return static_cast<WorkerPageSaves*>(
        static_cast<void*>(worker_page_pace(header, slot_count) + slot_count));
}

/// Why saves have failed, behind these, by local rank; of a page of version 10 or newer.
[[nodiscard]] inline WorkerPageReason* worker_page_reason(WorkerPageHeader* header,
                                                          std::uint32_t slot_count) {
    return static_cast<WorkerPageReason*>(
        static_cast<void*>(worker_page_saves(header, slot_count) + slot_count));
}

/// Size of a page of that version, or the known part of a newer one.
[[nodiscard]] constexpr std::size_t worker_page_bytes(std::uint32_t slot_count,
                                                      std::uint32_t version = kWorkerPageVersion) {
    std::size_t bytes = sizeof(WorkerPageHeader) + slot_count * sizeof(WorkerPageSlot);
    if (version >= kWorkerPageVersionWithFigures) {
        bytes += slot_count * sizeof(WorkerPageFigures);
    }
    if (version >= kWorkerPageVersionWithCheckpoints) {
        bytes += slot_count * sizeof(WorkerPageCheckpoints);
    }
    if (version >= kWorkerPageVersionWithPace) {
        bytes += slot_count * sizeof(WorkerPagePace);
    }
    if (version >= kWorkerPageVersionWithSaves) {
        bytes += slot_count * sizeof(WorkerPageSaves);
    }
    if (version >= kWorkerPageVersionWithReason) {
        bytes += slot_count * sizeof(WorkerPageReason);
    }
    return bytes;
}

}  // namespace ddprun
