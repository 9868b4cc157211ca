#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/contract/effects.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "agent/contract/warm_options.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/memory_room.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// Memory of a standby that has imported torch 2.13 for CPUs, and torch._dynamo, as measured.
inline constexpr std::uint64_t kStandbyWithTorchBytes = std::uint64_t{290} << 20;

// --------------------------------------------------------------------------------------- effects

/// Start the trial as the standby of the first slot; answered by is_here() or has_ended().
struct TryStandby {};

/// Start the standby of this slot, which is to import these modules, each as a worker has told it
/// or by its name; if `is_guess`, those that are installed and no part of the program. If
/// `is_rehearsal`, it ends then, and no worker comes of it.
struct PrepareStandby {
    LocalRank slot;
    std::vector<std::string> modules;
    bool is_guess = false;
    bool is_rehearsal = false;
    std::set<std::string> told;  ///< those that a worker of this run imports, of a rehearsal
};

/// SIGKILL the standby of this slot; answered by has_ended().
struct DiscardStandby {
    LocalRank slot;
};

using StandbyEffect = std::variant<TryStandby, PrepareStandby, DiscardStandby, Say>;
using StandbyEffects = std::vector<StandbyEffect>;

/// The state of a node on which standbys are prepared, or not.
struct NodeSeen {
    /// The room for standbys, if they need some. Unset: it is not known, or they need none.
    std::optional<MemoryRoom> room = {};
    /// Some worker that reports its steps has not reported the first.
    bool is_first_step_awaited = false;
};

/// Decides when this node prepares standbys, one at a time, which of them are given up, and which
/// workers of a generation start from theirs. Before modules are imported by the first standby a
/// rehearsal has imported them: a process that shows what of them must wait for the place, also
/// what leaves no trace, and ends. Pure. Owned and called by one thread.
///
/// Each call depends on all calls before it; settle() returns what is to be done after each.
class StandbySlots {
public:
    StandbySlots(const Limits& limits, int slots, WarmOptions options);

    /// The workers of a generation run, or there is none and this node waits for one: from now on
    /// the time to prepare counts.
    void begin(Instant now);

    /// Workers are being stopped, or this node goes: nothing is prepared until begin().
    void pause();

    /// The worker of `slot` sends these lines of what it imports, in this order. A standby imports
    /// what the first slot's worker and its own have both sent, in the state that its own sent,
    /// once no worker imports anything and neither has sent more for Limits::standby_quiet. A
    /// standby that was ready before is replaced. Until a worker sends anything, the list of an
    /// earlier run counts.
    void learn(Instant now, LocalRank slot, const std::vector<std::string>& lines);
    [[nodiscard]] bool learns() const {
        return !is_off() && (imports_ == Imports::Learning || is_own_program());
    }

    /// A worker reports that its program, which is not Python's, waits for its place by itself.
    void can_wait(Instant now);
    /// The program's name now leads to a program that has not reported that it can wait: none is
    /// prepared before a worker reports it again. The standby of `slot` has not been started.
    void is_another_program(LocalRank slot);

    /// The trial's, or a standby's, interpreter has the hook.
    void is_here(LocalRank slot);
    /// A rehearsal has imported all, has so many bytes of its own (0: not known), and ends.
    void is_fit(LocalRank slot, std::uint64_t memory = 0);
    /// It has so many bytes of its own; 0: not known.
    void is_ready(LocalRank slot, std::uint64_t memory = 0);
    /// It ends: `module` must not be imported before the place is known, and `why`. For a ready
    /// standby, `module` is a file.
    void is_unfit(LocalRank slot, const std::string& module, const std::string& why);
    /// It ends: a module that was only guessed cannot be imported. The next ones leave it out.
    void cannot_import(LocalRank slot, const std::string& module);
    void has_ended(LocalRank slot);
    /// No standby can be started here, for this reason: from now on every worker starts cold.
    void cannot_be_started(const std::string& why);
    /// Their keeper was lost, and they with it.
    void are_lost();
    /// Processes wait for memory: all are given up, and none is prepared until begin().
    void memory_is_short();

    /// A generation starts: those of its slots that have a standby. They are used up by this; if
    /// there are any, all others are given up, for they would share the keeper of that generation.
    [[nodiscard]] std::vector<LocalRank> take();

    [[nodiscard]] bool is_waiting(LocalRank slot) const {
        return std::holds_alternative<Ready>(at(slot).state);
    }

    /// Why `slot` has no standby at `now`, and how long that would have taken, for people.
    [[nodiscard]] std::string why_not(LocalRank slot, Instant now) const;

    /// Returns what is to be done, after each of the above, on a node that is like `node`.
    [[nodiscard]] StandbyEffects settle(Instant now, const NodeSeen& node);
    [[nodiscard]] std::optional<Instant> next_deadline();

    /// True once no standby is prepared any more.
    [[nodiscard]] bool is_off() const { return phase_ == Phase::Off; }

private:
    enum class Phase {
        Untried,  ///< it is not known whether the interpreter has the hook
        Tried,
        Off,  ///< none is prepared any more
    };
    /// The origin of the modules that standbys import.
    enum class Imports {
        Named,       ///< what the user has named
        Learning,    ///< what workers report, which is added
        Learned,     ///< what workers have reported; nothing is added any more
        OwnProgram,  ///< nothing: the program, which is not Python's, waits by itself
    };
    /// The line about an own program that has not told that it waits.
    enum class Untold {
        NotDue,  ///< no worker of it could have told that yet
        Due,
        Said,  ///< or it is never due
    };
    enum class Purpose {
        Trial,      ///< whether the interpreter has the hook
        Rehearsal,  ///< what of the modules must wait for the place
        Standby,
    };
    struct None {};
    struct Preparing {
        Instant until;
        std::size_t modules = 0;  ///< the first of modules_ that it imports
        Purpose purpose = Purpose::Standby;
    };
    struct Ready {
        std::size_t modules = 0;
        std::uint64_t memory = 0;
    };
    /// It ends by itself, or was killed; its end has not been told.
    struct Ending {};
    /// An import beforehand is to find this.
    struct Import {
        std::string name;
        std::string found = {};  ///< a digest of its files; empty: not known
        std::string state = {};  ///< in which it began; empty: that of the start
    };
    /// The worker of one slot has told this.
    struct Told {
        /// A line names only what is not as in the one before.
        [[nodiscard]] Import take(std::string_view line);

        std::map<std::string, Import> imports;  ///< by name
        std::string state;                      ///< of the last line that named one
    };
    struct Slot {
        std::variant<None, Preparing, Ready, Ending> state;
        int failures = 0;  ///< since one was taken
        int renewals = 0;  ///< since begin()
    };

    [[nodiscard]] Slot& at(LocalRank slot) { return slots_.at(index(slot)); }
    [[nodiscard]] const Slot& at(LocalRank slot) const { return slots_.at(index(slot)); }
    [[nodiscard]] static std::size_t index(LocalRank slot) {
        return static_cast<std::size_t>(slot.value());
    }
    void has_hook() { phase_ = is_off() ? phase_ : Phase::Tried; }
    void fail(LocalRank slot, const std::string& why);
    void prepare_next(Instant now, const NodeSeen& node);
    void say(std::string line) { effects_.emplace_back(Say{std::move(line)}); }
    void discard(Slot& slot);
    void keep_memory_max();
    [[nodiscard]] std::uint64_t memory_of_ready() const;
    /// Why another one is not prepared; empty: there is room.
    [[nodiscard]] std::string no_room(const std::optional<MemoryRoom>& room) const;
    /// When standbys may be prepared, or might have been before pause().
    [[nodiscard]] Instant due() const {
        return prepare_at_ ? *prepare_at_ : due_before_pause_.value_or(begun_);
    }
    [[nodiscard]] Instant begin_of(const Preparing& preparing) const {
        return preparing.until - limits_.standby_ready_timeout;
    }
    /// It is being prepared for this.
    [[nodiscard]] static const Preparing* preparing_for(Purpose purpose, const Slot& slot) {
        const auto* preparing = std::get_if<Preparing>(&slot.state);
        return preparing != nullptr && preparing->purpose == purpose ? preparing : nullptr;
    }
    [[nodiscard]] LocalRank number_of(const Slot& slot) const {
        return LocalRank(static_cast<int>(&slot - slots_.data()));
    }
    [[nodiscard]] Slot* next_to_prepare();
    /// One that was ready before something was learned, and may be replaced.
    [[nodiscard]] Slot* next_to_renew();
    [[nodiscard]] bool is_preparing() const;
    [[nodiscard]] bool is_rehearsal_due() const;
    /// How many modules the next standbys import.
    [[nodiscard]] std::size_t modules_wanted() const {
        return is_rehearsal_due() ? modules_.size() : rehearsed_;
    }
    /// `module` is no name: the import has failed.
    void begins_import(LocalRank slot, std::string_view module);
    void hear(Instant now, LocalRank slot, std::string_view line);
    /// Workers import something, or have not made their first step: their start needs the CPUs.
    [[nodiscard]] bool is_start_of_workers(Instant now) const {
        return (is_first_step_awaited_ || !importing_.empty()) && now < start_until_;
    }
    /// How long one standby's imports take; none: no standby has imported them yet.
    [[nodiscard]] std::optional<Duration> imports_take() const;
    /// Says what the standbys that are not prepared wait for.
    [[nodiscard]] std::string held_up_by(Instant now) const;
    /// From `now` until the standby of `slot` is ready, unless workers hold that up.
    [[nodiscard]] Duration ready_in(LocalRank slot, Instant now, Duration imports_take) const;
    void add(Import import);
    /// A line that is no module: nothing that a worker imports from now on is told.
    void stop_learning(LocalRank slot, std::string_view why);
    void end_learning();
    void forget_known();
    /// Its standby is replaced, if there is one.
    static void forget_modules_of(Slot& slot);
    [[nodiscard]] std::vector<Import>::iterator find(std::string_view module);
    /// The first `count` modules, for the standby of `slot`: as its own worker has told them.
    [[nodiscard]] std::vector<std::string> modules_for(LocalRank slot, std::size_t count) const;
    void take_out(std::vector<Import>::iterator first, std::vector<Import>::iterator last);

    [[nodiscard]] bool is_own_program() const { return imports_ == Imports::OwnProgram; }
    [[nodiscard]] bool is_untold() const { return untold_ == Untold::Due && modules_.empty(); }

    Limits limits_;
    std::string program_;  ///< the own program, or Python
    /// A program of its own is its only one, once it can wait.
    std::vector<Import> modules_;
    std::size_t rehearsed_ = 0;          ///< the first of them, which standbys may import
    int rehearsals_ = 0;                 ///< since begin()
    std::set<std::string> told_;         ///< those that a worker of this run imports, by name
    std::map<LocalRank, Told> of_slot_;  ///< what workers of this run have told
    std::set<std::string> left_out_;     ///< learned, but they cannot be imported
    std::size_t learned_bytes_ = 0;
    Imports imports_;
    Phase phase_;
    Untold untold_;
    std::optional<std::uint64_t> memory_max_;
    std::uint64_t measured_ = 0;     ///< the most that a standby has had; 0: none was ready yet
    bool has_said_no_room_ = false;  ///< once is enough
    std::vector<Slot> slots_;
    Instant begun_{};
    std::optional<Instant> prepare_at_;           ///< none: not now
    std::optional<Instant> due_before_pause_;     ///< prepare_at_, of which pause() took the rest
    std::map<LocalRank, std::string> importing_;  ///< workers, and what they import right now
    bool is_first_step_awaited_ = false;
    Instant start_until_{};                  ///< it is awaited no longer
    std::optional<Duration> told_after_;     ///< from begun_ to a worker's last import
    std::optional<Duration> imports_took_;   ///< those of the last standby or rehearsal
    std::optional<Instant> measured_since_;  ///< begin of one that is ready, until settle()
    StandbyEffects effects_;                 ///< of the next settle()
};

/// The name in what a worker has told of a module; the line is of no other form.
[[nodiscard]] std::string name_in(std::string_view line);

/// Whether a worker may have told this line of a module: a name, then perhaps what its import has
/// found, and in what state it began (worker_runtime/python/INTERNALS.md).
[[nodiscard]] bool is_told_line(std::string_view line);

/// Whether Python could have a module of this name.
[[nodiscard]] bool is_module_name(std::string_view name);

/// Whether workers are told this variable only when a generation starts: it differs from one to the
/// next.
[[nodiscard]] bool is_of_generation(const std::string& variable);

/// The variables for which that is so, for the standby that must not ask for them.
[[nodiscard]] std::vector<std::string> variables_of_generation();

/// The specs to start this node's standbys with: a worker's, but for the variables of a
/// generation.
[[nodiscard]] std::vector<WorkerSpec> standbys_of(const SupervisorOptions& options);

/// Whether a standby that was started as `standby` can become `worker`.
[[nodiscard]] bool can_become(const WorkerSpec& standby, const WorkerSpec& worker);

}  // namespace ddprun::agent
