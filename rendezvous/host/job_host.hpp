#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/result.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"

namespace ddprun::rdzv {

/// Whether the records of a run are kept beyond this process.
enum class Keeping {
    Nowhere,
    IfPossible,  ///< a record that cannot be written holds nothing up: the run goes on without it
    /// As one of several daemons: what was not written is not told while its lease could end
    /// meanwhile. A record that is not taken for longer than that holds nothing up any more.
    Strictly,
};

/// Looks on at every step of a coordinator, as tests do.
class StepWatcher {
public:
    virtual ~StepWatcher() = default;
    virtual void before_step(const Coordinator& coordinator, const Input& input, Instant now) = 0;
    virtual void after_step(const Coordinator& coordinator, const Input& input,
                            const Effects& effects, Instant now) = 0;
};

struct HostOptions {
    CoordinatorOptions coordinator;
    Keeping keeping = Keeping::Nowhere;
    /// Asked before each decision; none: always. False once: this host decides nothing any more.
    std::function<bool(Instant)> may_decide;
    StepWatcher* watcher = nullptr;  ///< outlives the host
};

/// A record for the journal; written() answers it by its number.
struct WriteRecord {
    std::uint64_t number = 0;
    RunRecord record;
};

/// The effects of a JobHost's step.
struct HostEffects {
    std::vector<Effect> now;  ///< in order
    std::vector<WriteRecord> writes;
    /// Call wakes() then. In place of what the timer was set to.
    std::optional<Instant> timer;
};

/// One job in a process: its Coordinator with what is decided around it. When to wake up, whether
/// this process was held up, what waits for which record, and whether it may decide at all. Pure:
/// it is given the time. Daemon, single-node link and simulator carry out what it wants.
///
/// * One timer, which fires at the earliest deadline of all. A deadline that moved away (every beat
///   does that) leaves it alone: it fires, finds nothing due and is set anew. That is one wake-up
///   per lease instead of two timer operations per beat.
/// * A timer that is long due and has not fired shows that this process was stalled. Every input
///   checks it first, because sockets are served before timers.
/// * Effects go in order, those after an awaited record only when it is durable. Acknowledgements
///   wait for nothing: a slow disk costs no lease. A record that failed is written again, as it is
///   by then, until one is taken. One that nothing waits for is not made for each of thousands of
///   changes (Limits::nodes_recorded_per_second_max): a record costs as much as its run has nodes.
/// * Nothing waits for longer than patience(): then the run goes on without its record, and says
///   so, until one is taken.
/// * Once it was not to decide, it takes nothing any more: what it did not take in would be missed.
///   Its owner ends its connections, and agents say everything again to who decides then.
class JobHost {
public:
    JobHost(JobId job, HostOptions options, Rng rng);
    JobHost(const JobHost&) = delete;
    JobHost& operator=(const JobHost&) = delete;

    /// As Coordinator::restore().
    [[nodiscard]] Result<void> restore(Instant now, const RunRecord& record, HostEffects& out);

    void step(Instant now, const Input& input, HostEffects& out);

    /// The timer has fired. True: a deadline of the run is due. Feed what has arrived meanwhile, so
    /// that no node is judged unheard, then call judge().
    [[nodiscard]] bool wakes(Instant now, HostEffects& out);
    void judge(Instant now, HostEffects& out);

    /// The result of a write; `fault` is empty if the record is durable.
    void written(Instant now, std::uint64_t number, const std::string& fault, HostEffects& out);

    /// Nothing of it is worth keeping: this object and the record of its run can go.
    [[nodiscard]] bool is_forgettable(Instant now) const;

    [[nodiscard]] const Coordinator& coordinator() const { return coordinator_; }
    /// Why records do not reach the journal; empty: they do, as far as is known.
    [[nodiscard]] const std::string& fault() const { return fault_; }
    /// Messages that must be durable wait for their record. False: the journal has refused records,
    /// and has taken none since.
    [[nodiscard]] bool awaits_records() const {
        return is_strict() ? !goes_without_ : fault_.empty();
    }
    /// Effects wait for a record.
    [[nodiscard]] bool is_waiting() const { return !held_.empty(); }

private:
    [[nodiscard]] bool decides(Instant now);
    void admit_hold_up(Instant now, HostEffects& out);
    void run_step(Instant now, const Input& input, HostEffects& out);
    void arm(Instant now, HostEffects& out);
    [[nodiscard]] std::optional<Instant> wanted_timer() const;

    void hold(Effect effect, HostEffects& out);
    void persist(Instant now, RecordWrite kind, HostEffects& out);
    void write(Instant now, HostEffects& out);
    /// Nothing waits for the record: at once, or when its pause is over.
    void write_behind(Instant now, HostEffects& out);
    void give_up_waiting(Instant now, HostEffects& out);
    /// When it begins and ends, and, once in Limits::reconnect_backoff_max, when it is another:
    /// what is to be done about it has changed.
    void tell_fault(Instant now, const std::string& fault, HostEffects& out);
    /// Reports fault_ to the run: one that began after the fault has not heard of it.
    void tell_run(Instant now, HostEffects& out);
    void release(HostEffects& out);
    void try_again(Instant now);
    [[nodiscard]] bool is_strict() const { return options_.keeping == Keeping::Strictly; }
    [[nodiscard]] Milliseconds patience() const;

    HostOptions options_;
    Coordinator coordinator_;
    std::optional<Instant> armed_;  ///< when the timer fires
    bool is_over_ = false;          ///< it was not to decide

    std::uint64_t asked_ = 0;             ///< writes that were begun
    std::uint64_t answered_ = 0;          ///< the newest of them that is over
    std::uint64_t gate_ = 0;              ///< effects from now on wait for this write
    std::uint64_t open_ = 0;              ///< effects held for writes up to this one may go
    bool is_outdated_ = false;            ///< the run has changed since the last write was begun
    std::optional<Instant> patience_at_;  ///< what is awaited is given up then
    bool goes_without_ = false;           ///< they were given up, and none was taken since
    std::optional<Instant> write_at_;     ///< the last write failed, or the next one has a pause
    Instant pause_end_{};                 ///< until then none that nothing waits for is begun
    Milliseconds retry_pause_;            ///< before the next one; doubled
    std::deque<std::pair<std::uint64_t, Effect>> held_;
    std::string fault_;
    Instant fault_told_at_{};
};

}  // namespace ddprun::rdzv
