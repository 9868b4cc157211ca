#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/warm/standby_slots.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "tests/sim/dice.hpp"

namespace ddprun::sim {

/// One node's standbys: the real StandbySlots, and processes that are made up. They are ready,
/// late, hung, unfit or dead at random. Judges what is decided: one is prepared at a time, none
/// while workers are being stopped, import or have not made their first step, those and only those
/// that wait are taken, and who is left in peace has one in each slot.
class FakeStandbys {
public:
    struct Shell {
        std::function<Instant()> now;  ///< by the agent's clock
        /// In the agent's process, unless it is gone by then.
        std::function<void(Duration, std::function<void()>)> later;
        std::function<void(const std::string&)> violate;
        std::function<void(const std::string&)> trace;
    };

    FakeStandbys(const Limits& limits, int slots, Dice dice, Shell shell);

    /// As StandbySlots.
    void begin();
    void pause();
    void start_generation();
    /// Preparations that have begun may take longer: the agent does not run for a while.
    void excuse() { peace_ += 1; }

private:
    struct Process {
        std::uint64_t id = 0;
        bool is_ready = false;
    };
    using Told = std::function<void()>;

    void begin(bool awaits_first_step);
    void settle();
    void arm();
    void carry_out(const agent::TryStandby& effect);
    void carry_out(const agent::PrepareStandby& effect);
    void carry_out(const agent::DiscardStandby& effect);
    void carry_out(const agent::Say& effect);
    [[nodiscard]] bool is_program_gone(const agent::PrepareStandby& effect);
    std::uint64_t start(LocalRank slot);
    /// `told` is what the agent learns then, if it is still that process.
    void then(LocalRank slot, std::uint64_t id, Duration delay, const Told& told);
    void end(LocalRank slot, std::uint64_t id, Duration delay);
    void learn(const std::string& module);
    void lose_keeper();
    void expect_one_in_each_slot();
    [[nodiscard]] std::vector<LocalRank> ready() const;

    Limits limits_;
    int count_;
    Dice dice_;
    agent::WarmOptions options_;
    agent::StandbySlots slots_;
    Shell shell_;
    std::map<LocalRank, Process> processes_;
    std::uint64_t last_id_ = 0;
    std::uint64_t peace_ = 0;  ///< counts what disturbs preparing
    bool is_paused_ = true;
    bool is_first_step_awaited_ = false;  ///< of the generation that runs
    bool is_importing_ = false;           ///< a worker of it
    Instant began_{};
    bool has_learned_ = false;  ///< what a worker imports, or that its program waits
};

}  // namespace ddprun::sim
