#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/supervisor.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// What the user asked for with --warm.
struct WarmOptions {
    std::vector<std::string> modules;  ///< to be imported beforehand; empty: nobody asked
    /// A program of the workers' interpreter that does nothing: it shows whether that has the hook.
    std::vector<std::string> trial;
};

// --------------------------------------------------------------------------------------- effects

/// Start the trial as the standby of the first slot; answered by is_here() or has_ended().
struct TryStandby {};

/// Start the standby of this slot, which is to import these modules.
struct PrepareStandby {
    LocalRank slot;
    std::vector<std::string> modules;
};

/// SIGKILL the standby of this slot; answered by has_ended().
struct DiscardStandby {
    LocalRank slot;
};

using StandbyEffect = std::variant<TryStandby, PrepareStandby, DiscardStandby, Say>;
using StandbyEffects = std::vector<StandbyEffect>;

/// Decides when this node prepares standbys, one at a time, which of them are given up, and which
/// workers of a generation start from theirs. Pure. Owned and called by one thread.
///
/// What has come before a call counts: settle() says what is to be done after each.
class StandbySlots {
public:
    StandbySlots(const Limits& limits, int slots, WarmOptions options);

    /// The workers of a generation run, or there is none and this node waits for one: from now on
    /// the time to prepare counts.
    void begin(Instant now);

    /// Workers are being stopped, or this node goes: nothing is prepared until begin().
    void pause() { prepare_at_.reset(); }

    /// The trial's, or a standby's, interpreter has the hook.
    void is_here(LocalRank slot);
    void is_ready(LocalRank slot);
    /// It ends: `module` must not be imported before the place is known, and `why`.
    void is_unfit(LocalRank slot, const std::string& module, const std::string& why);
    void has_ended(LocalRank slot);
    /// Their keeper was lost, and they with it.
    void are_lost();

    /// A generation starts: those of its slots that have a standby. They are used up by this; if
    /// there are any, all others are given up, for they would share the keeper of that generation.
    [[nodiscard]] std::vector<LocalRank> take();

    [[nodiscard]] bool is_waiting(LocalRank slot) const {
        return std::holds_alternative<Ready>(at(slot).state);
    }

    /// Why `slot` has no standby, for people.
    [[nodiscard]] std::string why_not(LocalRank slot) const;

    /// Does what has become due, after each of the above.
    void settle(Instant now, StandbyEffects& out);
    [[nodiscard]] std::optional<Instant> next_deadline() const;

    /// None is prepared any more.
    [[nodiscard]] bool is_off() const { return modules_.empty(); }

private:
    struct None {};
    struct Preparing {
        std::optional<Instant> until;  ///< set by settle()
        bool is_trial = false;
    };
    struct Ready {};
    /// It ends by itself, or was killed; its end has not been told.
    struct Ending {};
    struct Slot {
        std::variant<None, Preparing, Ready, Ending> state;
        int failures = 0;  ///< since one was taken
    };

    [[nodiscard]] Slot& at(LocalRank slot) { return slots_.at(index(slot)); }
    [[nodiscard]] const Slot& at(LocalRank slot) const { return slots_.at(index(slot)); }
    [[nodiscard]] static std::size_t index(LocalRank slot) {
        return static_cast<std::size_t>(slot.value());
    }
    void fail(LocalRank slot, const std::string& why);
    void prepare_next(Instant now, StandbyEffects& out);
    [[nodiscard]] bool is_preparing() const;

    Limits limits_;
    std::vector<std::string> modules_;
    std::string python_;
    bool is_tried_ = false;  ///< the interpreter has the hook
    std::vector<Slot> slots_;
    std::optional<Instant> prepare_at_;  ///< none: not now
    std::vector<std::string> lines_;     ///< to be said by the next settle()
};

/// Whether workers are told this variable only when a generation starts: it differs from one to the
/// next.
[[nodiscard]] bool is_of_generation(const std::string& variable);

/// The variables for which that is so, for the standby that must not ask for them.
[[nodiscard]] std::vector<std::string> variables_of_generation();

/// What the standbys of this node are started with: a worker's, but for the variables of a
/// generation.
[[nodiscard]] std::vector<WorkerSpec> standbys_of(const SupervisorOptions& options);

/// Whether a standby that was started as `standby` can become `worker`.
[[nodiscard]] bool can_become(const WorkerSpec& standby, const WorkerSpec& worker);

}  // namespace ddprun::agent
