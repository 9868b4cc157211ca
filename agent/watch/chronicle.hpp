#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "agent/watch/rank_pace.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/events/event.hpp"

namespace ddprun::agent {

/// How the saves go that a worker leads, as it told (WorkerPageSaves).
struct SavesTold {
    std::uint64_t saved = 0;
    std::uint64_t step = 0;  ///< the last one that is complete, as the next five
    Instant saved_at{};
    std::uint64_t bytes = 0;
    Duration stall{};
    Duration took{};
    std::uint64_t places = 0;
    std::uint64_t failed = 0;
    std::uint64_t failed_step = 0;
    Instant failed_at{};
    std::string failed_reason;  ///< any bytes; empty: not told
    std::uint64_t late = 0;
    std::uint64_t in_time = 0;
    Duration interval{};
};

/// A worker's progress, as it told through its page.
struct WorkerMoments {
    std::optional<Instant> main;
    std::optional<Instant> group_ready;
    std::optional<Instant> resumed;
    std::optional<Instant> first_step;
    std::optional<std::uint64_t> step;          ///< the last one
    std::optional<std::uint64_t> first_number;  ///< of the first step
    std::optional<StepTold> last;               ///< the last step, with all that belongs to it
    Duration checkpointing{};                   ///< has stood still for that, since its first step
    std::uint64_t samples = 0;                  ///< trained on by this process
    std::optional<SavesTold> saves;             ///< none: it leads none
};

/// When the whole job came to it, as far as that follows from what the workers' store has seen, and
/// from what they write.
struct Estimates {
    std::optional<Instant> main;
    std::optional<Instant> group_ready;
    std::optional<Instant> first_step;
};

/// Reports as events what a Supervisor was given and has decided, and how far its workers are.
/// Decides nothing, and asks for nothing. Pure; owned by the Supervisor's owner.
class Chronicle {
public:
    using Events = std::vector<rdzv::Event>;

    /// `options` as the Supervisor's; `program` as the user named it.
    Chronicle(const SupervisorOptions& options, std::string program, int pid);

    /// The first event; before all others.
    void begin(Instant now, Events& out) const;

    /// `effects` are what the Supervisor answered to `input` at `now`.
    void observe(Instant now, const Input& input, const std::vector<Effect>& effects, Events& out);

    /// The keeper has started one worker of `generation`.
    void worker_started(Instant now, Generation generation, LocalRank local_rank, int pid,
                        Events& out);

    /// Takes what the workers of `generation` have told so far, by local rank. Each moment is told
    /// once, when all of them have come to it, as of the last. The step comes into the event of
    /// their end.
    void look_at(Generation generation, const std::vector<WorkerMoments>& workers, Events& out);

    /// True if no worker reports a moment through its page, and some moments are not known.
    [[nodiscard]] bool needs_estimates() const;

    /// Each moment at most once, as of all ranks. Those before the start of `generation` are of
    /// another one.
    void estimate(Generation generation, const Estimates& estimates, Events& out);

    /// Returns the phase of a worker of the newest generation that has told `told`.
    [[nodiscard]] rdzv::RankPhase phase_of(LocalRank local_rank, const WorkerMoments& told) const;

    /// Returns the number of nodes of the newest generation that was started here.
    [[nodiscard]] int nodes() const { return row_ ? row_->group_world_size : 1; }

private:
    static constexpr std::size_t kMoments = 4;

    /// The newest generation that was started here.
    struct Started {
        Generation generation;
        int base_rank = 0;
        std::vector<std::int64_t> pids;  ///< by local rank; 0: not yet
        std::set<int> failed;            ///< local ranks of whom that was told, as the next two
        std::set<int> worded;            ///< their last words were
        std::set<int> finished;
        std::array<bool, kMoments> is_told{};
        std::optional<std::uint64_t> step;
        bool is_stop_told = false;
        bool tells_moments = false;  ///< a worker does
        Instant at{};
    };

    void hear(Instant now, const rdzv::RendezvousMessage& message, Events& out);
    void carry_out(Instant now, const Effect& effect, Events& out);
    void send(Instant now, const rdzv::AgentMessage& message, Events& out);
    void tell_failure(Instant now, const rdzv::WorkerFailed& failed, Events& out);
    [[nodiscard]] std::optional<Rank> rank_of(Generation generation, LocalRank local_rank) const;

    std::string job_;
    std::string hostname_;
    std::string node_;
    std::string program_;
    int pid_;
    int slots_;
    std::optional<rdzv::Start> row_;  ///< of the last Start
    std::optional<Started> started_;
    std::string waiting_;  ///< what the rendezvous waits for
};

}  // namespace ddprun::agent
