#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

// ------------------------------------------------------------------ what became of one worker

struct Alive {};

/// Exited 0 before anything was asked of it: counts for success.
struct Finished {};

/// The last words of a worker that failed.
enum class Words {
    Settled,  ///< in its evidence, or none are to be had
    Awaited,  ///< being read: Stopped follows them
};

/// Failed by itself. Reported at once, and again after every reconnect.
struct Failed {
    rdzv::Evidence evidence;
    Instant at{};
    Words words = Words::Settled;
};

/// Died of a signal that may have been meant for the whole node: judged at `judged_at`, when our
/// own pending signal has been read.
struct HeldBack {
    rdzv::Evidence evidence;
    Instant at{};
    Words words = Words::Settled;
    Instant judged_at{};
};

/// Has failed and is not gone yet: its generation hangs, or it is on its way out. Reported like one
/// that ended.
struct Failing {
    rdzv::Evidence evidence;
    Instant at{};
    Words words = Words::Settled;
};

/// Ended after a stop or while this node leaves: neither success nor failure.
struct Left {
    std::optional<int> exit_code = {};
    std::optional<std::uint64_t> step = {};  ///< the last one that it told
    SavedWork saved = {};
};

using WorkerFate = std::variant<Alive, Finished, Failed, HeldBack, Failing, Left>;

/// It is certain by now that this one has failed, and that it has ended.
template <typename HeldBackOrFailing>
[[nodiscard]] Failed failed_of(HeldBackOrFailing fate) {
    return {.evidence = std::move(fate.evidence), .at = fate.at, .words = fate.words};
}

/// It has not ended, or that is not known.
[[nodiscard]] inline bool is_running(const WorkerFate& fate) {
    return std::holds_alternative<Alive>(fate) || std::holds_alternative<Failing>(fate);
}

// ------------------------------------------------------------- what is done about all of them

struct WorkersRun {};

/// They hang: their stacks are being saved. Then they are stopped.
struct WorkersHang {
    int signal = 0;
    Duration grace{};
};

/// How workers were told to go.
enum class StopManner {
    Drain,       ///< those that read the shared page are asked there, the others signalled
    AfterDrain,  ///< it began as a drain; since then all have been signalled
    Signal,      ///< all were signalled, none was asked
};

/// `signal` was sent at `since`; what still runs at `kill_at` is killed.
struct WorkersStop {
    Instant since{};
    Instant kill_at{};
    Instant leave_by{};  ///< as the workers are told: others that save with them go then
    int signal = 0;
    StopManner manner = StopManner::Signal;
};

/// Killed; the proof that no process is left has not come.
struct WorkersKilling {
    Instant since{};  ///< all had ended, or were killed
};

/// Proven: nothing of this generation is left here.
struct WorkersGone {
    Instant ended{};  ///< as WorkersKilling::since
    Instant since{};  ///< the proof
};

using GroupPhase = std::variant<WorkersRun, WorkersHang, WorkersStop, WorkersKilling, WorkersGone>;

/// The part of one generation that lives on this node: its row of the rank map, its workers and
/// how far their end has come. Kept after the end, to be reported again.
class WorkerGroup {
public:
    WorkerGroup(rdzv::Start row, int slots);

    [[nodiscard]] const rdzv::Start& row() const { return row_; }
    [[nodiscard]] Generation generation() const { return row_.generation; }
    [[nodiscard]] bool serves_store() const { return row_.group_rank == 0 && row_.store.port != 0; }

    GroupPhase phase;
    std::vector<WorkerFate> fates;           ///< by local rank
    bool is_superseded = false;              ///< the run goes on without it
    Instant publish_until = Instant::min();  ///< as its workers were told

    template <typename T>
    [[nodiscard]] bool is_in() const {
        return std::holds_alternative<T>(phase);
    }
    [[nodiscard]] bool has_all_exited() const;
    /// Last words of a failed worker are being read.
    [[nodiscard]] bool awaits_words() const;

    [[nodiscard]] std::vector<LocalRank> running() const;

    /// Describes what all workers saved as they left, for people; empty: that is not known.
    [[nodiscard]] std::string saved_text() const;

    /// "local ranks 0, 2" of those that run, for people.
    [[nodiscard]] std::string running_text() const;

    /// Awaits the last words of a worker that failed or may have; all others have none.
    void await_words(LocalRank local_rank);

    /// They are known, or cannot be had. Its evidence, to put them into; null: nothing waits for
    /// them any more.
    [[nodiscard]] rdzv::Evidence* settle_words(LocalRank local_rank);

    /// The earliest held-back death or the kill of a stop.
    [[nodiscard]] std::optional<Instant> next_deadline() const;

private:
    rdzv::Start row_;
};

/// Returns the folder of a worker of `generation` below `log_dir`; empty if `log_dir` is.
[[nodiscard]] std::string worker_log_dir(const std::string& log_dir, Generation generation,
                                         LocalRank local_rank);

/// Returns the folder for the stacks of the workers of `generation`; empty if `log_dir` is.
[[nodiscard]] std::string stacks_dir(const std::string& log_dir, Generation generation);

/// All that the workers of `group` are started with, but for the page, which is the shell's to
/// make. `store` is where they find theirs, `local_address` this node's towards the others.
[[nodiscard]] StartWorkers start_of(const WorkerGroup& group, const SupervisorOptions& options,
                                    const StoreAddress& store, const std::string& local_address);

/// The environment of the prepare command: that of workers, but for what depends on ranks, on a
/// generation, or on where they meet.
[[nodiscard]] Environment environment_of_prepare(const SupervisorOptions& options,
                                                 const std::string& local_address);

}  // namespace ddprun::agent
