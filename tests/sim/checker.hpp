#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/instant.hpp"
#include "rendezvous/base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/rank_map.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/protocol/limits.hpp"
#include "rendezvous/protocol/messages.hpp"

namespace ddprun::sim {

struct Machine;

/// What really became of one rank, which no agent or coordinator can see.
enum class RankTruth { NotStarted, Lives, ExitedZeroByItself, EndedOtherwise };

struct GenerationTruth {
    std::string token;
    Generation generation;
    std::vector<rdzv::Place> places;
    std::map<int, RankTruth> ranks;
};

/// Judges a run from outside after every event. The first violation is kept.
class Checker {
public:
    explicit Checker(rdzv::Limits limits) : limits_(limits) {}

    /// Around each step of the coordinator.
    void before_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input);
    void after_step(const rdzv::Coordinator& coordinator, const rdzv::Effects& effects);
    /// The rendezvous lost its memory; the next run is another one.
    void forget_run();

    /// A node was told to start and did; `digest` names the generation.
    void workers_started(const std::string& digest, Rank base, int count, const NodeId& node);
    void worker_ended(const std::string& digest, Rank rank, bool is_zero_by_itself);

    /// After each step of an agent, and when it is gone.
    void agent_stepped(const Machine& machine, Instant now);
    void agent_ended(const Machine& machine);
    void note_signal() { is_anybody_signalled_ = true; }

    void violate(const std::string& property, const std::string& what);
    [[nodiscard]] const std::optional<std::string>& violation() const { return violation_; }

    /// The last verdict of any run, empty if none was reached.
    [[nodiscard]] const std::string& last_verdict() const { return last_verdict_; }

private:
    /// What a stale message must leave alone, and what one stop may charge.
    struct Snapshot {
        std::string token;
        std::size_t phase = 0;
        Generation generation;
        int restarts = 0;
        int losses = 0;
        std::size_t failures = 0;
        std::size_t finished = 0;
        rdzv::StopCause cause = rdzv::StopCause::Failure;
        bool operator==(const Snapshot&) const = default;
    };
    [[nodiscard]] static Snapshot snapshot_of(const rdzv::Run* run);

    void check_start(const rdzv::Run& run, const rdzv::Start& start);
    void check_new_generation(const rdzv::Run& run);
    void check_charges(const rdzv::Run& run, const Snapshot& after);
    void check_verdict(const rdzv::Run& run, const rdzv::Verdict& verdict);

    rdzv::Limits limits_;
    Snapshot before_;
    bool is_stale_ = false;
    std::map<std::string, GenerationTruth> truths_;  ///< by digest
    std::string newest_digest_;
    std::map<NodeId, Instant> silent_since_;
    bool is_anybody_signalled_ = false;
    std::optional<std::string> violation_;
    std::string last_verdict_;
};

}  // namespace ddprun::sim
