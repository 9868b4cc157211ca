#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/rank_map.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::sim {

/// The true fate of one rank, which no agent or coordinator can see.
enum class RankTruth { NotStarted, Lives, ExitedZeroByItself, EndedOtherwise };

struct GenerationTruth {
    std::string token;
    Generation generation;
    Instant decided_at{};
    std::vector<rdzv::Place> places;
    std::vector<int> base_ranks;               ///< by group rank
    std::vector<std::optional<int>> partners;  ///< by group rank
    std::map<NodeId, std::size_t> group_ranks;
    std::vector<RankTruth> ranks;
    std::map<NodeId, int> finished_reports;  ///< ranks that the coordinator was told about
    std::map<int, Instant> failed_at;        ///< as reports say, by rank; of this daemon
    std::map<int, Instant> hung_since;       ///< the same of those that hung
    bool was_told = false;
    bool is_whole = true;  ///< the coordinator knows all of its places
};

/// A new daemon's memory of the run.
enum class Memory { Whole, Older, None };

/// Judges what one coordinator after the other decides, from outside, after every step. The first
/// violation is kept. checker.cpp: around a step; checker_run.cpp: what a run goes through.
class Checker {
public:
    Checker(Limits limits, bool has_leases) : limits_(limits), has_leases_(has_leases) {}

    /// Around each step of the coordinator.
    void before_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input, Instant now);
    void after_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input,
                    const rdzv::Effects& effects, Instant now);
    /// The daemon died. The next one has what is in the journal, or nothing.
    void daemon_died(Memory next);
    /// A verdict is kept no longer.
    void forget_run();
    /// No node came back to the run: only what late nodes still hold is known of it.
    void run_was_given_up();

    /// A message leaves the daemon.
    void told(const rdzv::Start& start);

    /// A node was told to start and did; `digest` names the generation.
    void workers_started(const std::string& digest, Rank base, int count, const NodeId& node);
    void worker_ended(const std::string& digest, Rank rank, bool is_zero_by_itself);

    /// An operator has heard that its order was taken.
    void order_answered(const rdzv::Run& run, std::uint64_t number);

    /// Some agent was told to leave, or gave up.
    void note_leaving() { has_anybody_left_ = true; }

    void violate(const std::string& property, const std::string& what);
    [[nodiscard]] const std::optional<std::string>& violation() const { return violation_; }

    /// The last verdict of any run, empty if none was reached.
    [[nodiscard]] const std::string& last_verdict() const { return last_verdict_; }
    /// Null if no generation has that digest.
    [[nodiscard]] const GenerationTruth* truth_of(const std::string& digest) const;
    /// The time from which the run could start; none while fewer than the minimum are ready.
    [[nodiscard]] std::optional<Instant> startable_since() const { return startable_since_; }
    /// Until when a generation was stopped that nothing was wrong with.
    [[nodiscard]] Instant last_drain() const { return last_drain_; }
    [[nodiscard]] int verdicts() const { return verdicts_; }

private:
    /// Snapshot::phase.
    static constexpr std::size_t kForming = 1;
    static constexpr std::size_t kRunning = 2;
    static constexpr std::size_t kStopping = 3;
    static constexpr std::size_t kAdopting = 5;

    /// The state that a stale message must leave alone, and that bounds what one stop may charge.
    struct Snapshot {
        std::string token;
        std::size_t phase = 0;
        Generation generation;
        std::string digest;
        int restarts = 0;
        int losses = 0;
        std::size_t nodes = 0;
        std::size_t parked = 0;
        std::size_t failures = 0;
        std::size_t lost_nodes = 0;
        std::size_t finished = 0;
        std::size_t quiet = 0;
        rdzv::StopCause cause = rdzv::StopCause::Failure;
        rdzv::StopCause order = rdzv::StopCause::Failure;
        bool is_explained_by_loss = false;
        bool is_in_doubt = false;
        bool operator==(const Snapshot&) const = default;
    };
    [[nodiscard]] static Snapshot snapshot_of(const rdzv::Run* run, bool is_whole);

    void check_report(const rdzv::Run& run, const rdzv::Received& received, Instant now);
    [[nodiscard]] static bool is_repeated(const rdzv::Run& run, const rdzv::Received& received);
    [[nodiscard]] static std::optional<NodeId> unfit_of(const rdzv::Run& run,
                                                        const rdzv::Received& received);
    void note_unfit(const rdzv::Coordinator& coordinator, const rdzv::Unfit& message, Instant now);
    void check_unfit(const rdzv::Run& run, Instant now);
    void check_cut_off(const rdzv::Run& run) const;
    void check_stop(const rdzv::Run& run, const rdzv::Stop& stop);
    void check_new_generation(const rdzv::Run& run, Instant now);
    void check_places(const rdzv::Run& run, const GenerationTruth& old);
    void check_choice(const rdzv::Run& run, Instant now);
    void check_size(const rdzv::Run& run, Instant now);
    void check_programs(const rdzv::Run& run);
    void check_partners(const rdzv::Run& run, const GenerationTruth& truth);
    [[nodiscard]] static bool is_size(const rdzv::JobSettings& settings, std::size_t nodes);
    [[nodiscard]] static bool is_size_between(const rdzv::JobSettings& settings, std::size_t above,
                                              std::size_t most);
    void check_pace(Instant now);
    void check_charges(const rdzv::Run& run, const Snapshot& after, const rdzv::Input& input);
    void check_adoption(const rdzv::Run& run);
    void check_missed(const rdzv::Run& run, const rdzv::Stopping& stopping);
    void check_losses(const rdzv::Run& run, const Snapshot& after, const rdzv::Input& input);
    void check_verdict(const rdzv::Run& run, const rdzv::Verdict& verdict);
    void check_first_failure(const rdzv::Run& run, const rdzv::Verdict& verdict);
    /// `named` is called the first of the failures in `reports`.
    void check_earliest(const GenerationTruth& truth, const std::map<int, Instant>& reports,
                        std::size_t named);
    void check_events(const rdzv::Run& run, const rdzv::Effects& effects, const Snapshot& after,
                      Instant now);
    void check_order(const rdzv::Run& run, const rdzv::OrderGiven& given,
                     const rdzv::Effects& effects, Instant now);
    void check_orders_are_heeded(const rdzv::Run& run, Instant now);
    void check_start_is_due(const rdzv::Run& run, Instant now);

    Limits limits_;
    bool has_leases_;
    Snapshot before_;
    bool is_stale_ = false;                 ///< this step's input: a report of an older generation
    bool is_repeated_ = false;              ///< one that was said before
    bool is_first_step_ = true;             ///< of this daemon
    Generation newest_held_;                ///< by those who wait to be adopted
    std::optional<NodeId> cut_off_;         ///< by this step's input, and not believed dead
    std::optional<NodeId> unfit_;           ///< says this step's input, and goes
    bool is_strangers_word_ = false;        ///< this step's input: who has not joined is not fit
    std::optional<NodeId> namesake_;        ///< of a node of the run
    Instant namesake_until_{};              ///< its quarantine, if any
    std::map<NodeId, Instant> unfit_told_;  ///< before any run could judge it, and until when
    std::map<std::string, GenerationTruth> truths_;  ///< by digest
    std::map<std::string, Generation> newest_told_;  ///< by run token
    std::map<std::string, int> restarts_told_;       ///< by run token
    std::deque<Instant> starts_;                     ///< of the last minute
    Instant last_drain_{};
    std::optional<Instant> forming_since_;
    std::optional<Instant> startable_since_;
    bool has_anybody_left_ = false;
    std::map<std::uint64_t, Instant> holds_given_;  ///< by the order's number: until when
    std::map<std::string, Instant> held_until_;     ///< by run token, as operators were told
    std::set<std::string> ended_;                   ///< run tokens: an operator wanted that
    std::optional<std::string> violation_;
    std::string last_verdict_;
    int verdicts_ = 0;
    bool is_restored_ = false;  ///< some time a daemon died
};

}  // namespace ddprun::sim
