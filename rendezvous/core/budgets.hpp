#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "rendezvous/wire/messages.hpp"

/// Budgets and pace of restarts: the cost of stops, and how often a run may start again.
namespace ddprun::rdzv {

/// The part of --max-restarts and --max-node-losses that a run has used, and the step where it
/// keeps failing. The used part never exceeds the settings.
struct Budgets {
    int restarts_used = 0;
    int node_losses_used = 0;
    std::optional<std::uint64_t> failed_step;  ///< where the last failure happened, if it told
    int failures_at_step = 0;                  ///< in a row, all there
    std::string last_likeness = {};            ///< of the last failure; not recorded: a hint only
    int alike = 0;                             ///< failures in a row with that likeness

    [[nodiscard]] bool has_restart_left(const JobSettings& settings) const;
    [[nodiscard]] bool may_lose(const JobSettings& settings, std::size_t nodes) const;
    /// Restarted again and again at one step (S9 would let it go on for long).
    [[nodiscard]] bool is_without_progress(const JobSettings& settings) const;
    /// The first failure of a stop that counts happened at that step.
    void learn_step(std::optional<std::uint64_t> failed_at);
    /// The first failure of a stop that counts was like that (likeness_of()). How many in a row.
    int learn_likeness(const std::string& likeness);
    /// Raises the used parts to those that a member of another daemon's generation was told.
    void learn_used(const HeldGeneration& held, const JobSettings& settings);
};

/// A pause after very many starts, longer each time; forgotten once a generation has lasted.
class RestartPace {
public:
    void started(Instant now) { recent_starts_.push_back(now); }
    /// The last generation is over: before when the next one may not start; none: at once.
    [[nodiscard]] std::optional<Instant> back_off(const Limits& limits, Instant now);

private:
    std::deque<Instant> recent_starts_;  // within the window, once back_off() has looked
    Milliseconds next_pause_{0};         // 0: the first one
};

}  // namespace ddprun::rdzv
