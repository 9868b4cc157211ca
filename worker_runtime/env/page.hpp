#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::worker {

/// An agent's request that its workers save and leave.
struct StopRequest {
    int signal = 0;      ///< that a worker without the runtime would have been sent
    Instant deadline{};  ///< they are killed then, or others that save with them are gone
};

/// The end of a save.
struct SaveEnd {
    bool is_complete = false;  ///< false: it has failed, and of the rest only `why` counts
    std::uint64_t bytes = 0;   ///< of the state that all ranks have saved
    std::uint64_t places = kSavePlaceDisk;
    std::string why = {};  ///< it has failed: one line. Above kSaveReasonBytesMax it is cut
};

/// A worker's view of the page that it shares with its agent
/// (worker_runtime/contract/worker_page.hpp). Without one (no agent launched it, or the agent
/// has none) every answer is "no" and progress is kept nowhere. Any thread; nothing blocks.
class Page {
public:
    /// There is none.
    Page();

    /// Maps the page at `path` and says in this worker's slot that it is read: from then on a
    /// stop is told here and no signal is sent, and this process's death is known at once
    /// (life_lock.hpp; to be called on main()'s thread for that). Fails, having said nothing, when
    /// the file is no page of a known version, of this generation and number of workers.
    [[nodiscard]] static Result<Page> open(const std::string& path, Generation generation,
                                           LocalRank local_rank, int local_world_size);

    [[nodiscard]] bool is_open() const { return header_->slot_count > 0; }

    /// True while this node's place in the generation is in doubt: publish nothing. It becomes so
    /// by this process's own clock, whatever became of the agent; who acts on "no" acts at once.
    [[nodiscard]] bool is_isolated() const;

    [[nodiscard]] std::optional<StopRequest> stop_request() const;

    /// `samples`: trained on since the last call; they are added up. When `step` was done, and what
    /// was waited until then, is not written if another thread writes that of a step just now, or
    /// if this is a signal's handler and has interrupted that: the next step's is.
    void tell_progress(std::int64_t step, std::int64_t samples = 0,
                       std::optional<double> loss = std::nullopt);

    /// The loss alone; the last one counts.
    void tell_loss(double loss) { figures_->loss.store(loss); }

    /// Times, of which the first one told counts. open() writes when the program began, and
    /// tell_progress() its first step.
    void tell_group_ready(Instant now);
    void tell_resumed(Instant now);

    /// It has waited so much longer for other ranks; any thread. From the first call on what of a
    /// step is its own can be told from what it waits.
    void tell_waited(Duration time);

    /// Its training has stood still so much longer for a checkpoint; any thread. Before the first
    /// step that is not training, and is not told.
    void tell_checkpointing(Duration time);

    /// How many steps the run will have in all, counted as tell_progress() does.
    void tell_total_steps(std::int64_t steps);

    /// Reports where checkpoints are; the last call counts. `path`, from the root, leads to a file
    /// or to a folder with the newest one in it. Above kCheckpointsPathBytesMax it is ignored.
    void tell_checkpoints(std::string_view path);

    /// The worker that leads the saves calls these for each save: the training asks for it, the
    /// save before has ended and this one begins, the training goes on after it has stood still so
    /// long, and the save has ended. The last two come in either order, and on any thread. A save
    /// that is refused does not begin. The agent is woken when a save has ended and the training
    /// goes on, and when a save is asked for while the one before is under way (`is_late`).
    void tell_save_asked(bool is_late);
    void tell_save_begun(std::int64_t step);
    void tell_save_stalled(Duration time);
    void tell_save_ended(const SaveEnd& end);

private:
    /// A save that has begun, until its stall and its end are known.
    struct SaveUnderWay {
        std::mutex mutex;
        Instant asked = Instant::min();  ///< the last one
        std::optional<std::int64_t> step;
        Instant begun{};
        std::optional<Duration> stalled;
        std::optional<SaveEnd> end;
        Instant ended{};
    };
    /// With the mutex held: has `write` change the saves of the page.
    template <typename Write>
    void write_saves(const Write& write);
    void tell_whole_save();

    /// By one at a time. Nothing in it throws: is_telling_ is cleared behind it.
    void tell_pace(std::uint64_t step) noexcept;

    // They stay mapped for as long as the process lives. A part that does not exist, or not in a
    // page of that version, is replaced by one of this process, which no other process reads.
    WorkerPageHeader* header_;
    WorkerPageSlot* slot_;
    WorkerPageFigures* figures_;
    WorkerPageCheckpoints* checkpoints_;
    WorkerPagePace* pace_;
    WorkerPageSaves* saves_;
    WorkerPageReason* reason_;
    std::unique_ptr<SaveUnderWay> save_;
    static inline std::atomic_flag is_telling_;  ///< in the page it would stay set after a kill
};

}  // namespace ddprun::worker
