#include "rendezvous/host/job_host.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

JobHost::JobHost(JobId job, HostOptions options, Rng rng)
    : options_(std::move(options)),
      coordinator_(std::move(job), options_.coordinator, rng),
      retry_pause_(options_.coordinator.limits.reconnect_backoff_min) {}

Result<void> JobHost::restore(Instant now, const RunRecord& record, HostEffects& out) {
    Result<void> restored = coordinator_.restore(now, record);
    arm(now, out);
    return restored;
}

void JobHost::step(Instant now, const Input& input, HostEffects& out) {
    if (!decides(now)) {
        return;
    }
    admit_hold_up(now, out);
    run_step(now, input, out);
    arm(now, out);
}

bool JobHost::is_forgettable(Instant now) const {
    return coordinator_.is_empty() || coordinator_.is_forgettable(now);
}

bool JobHost::decides(Instant now) {
    if (!is_over_ && options_.may_decide && !options_.may_decide(now)) {
        DDP_PROBE(was_not_to_decide);
        is_over_ = true;
    }
    return !is_over_;
}

void JobHost::run_step(Instant now, const Input& input, HostEffects& out) {
    Effects effects;
    if (options_.watcher != nullptr) {
        options_.watcher->before_step(coordinator_, input, now);
    }
    coordinator_.step(now, input, effects);
    if (options_.watcher != nullptr) {
        options_.watcher->after_step(coordinator_, input, effects, now);
    }
    for (Effect& effect : effects.now) {
        hold(std::move(effect), out);
    }
    persist(now, effects.record, out);
    for (Effect& effect : effects.after_record) {
        hold(std::move(effect), out);
    }
    release(out);
    const Run* run = coordinator_.run();
    if (!fault_.empty() && run != nullptr && run->not_durable.empty()) {
        DDP_PROBE(run_began_without_journal);
        tell_run(now, out);
    }
}

// ------------------------------------------------------------------------------------------- timer

bool JobHost::wakes(Instant now, HostEffects& out) {
    if (!decides(now)) {
        return false;
    }
    admit_hold_up(now, out);
    if (patience_at_ && *patience_at_ <= now) {
        give_up_waiting(now, out);
    }
    if (write_at_ && *write_at_ <= now) {
        DDP_PROBE(record_tried_again);
        write_at_.reset();
        write(now, out);
    }
    const std::optional<Instant> deadline = coordinator_.next_deadline();
    if (deadline && *deadline <= now) {
        return true;
    }
    DDP_PROBE(timer_found_nothing_due);
    armed_.reset();
    DDP_RULE(arm(now, out), TimerNotSetAnew, void());
    return false;
}

void JobHost::judge(Instant now, HostEffects& out) {
    if (!decides(now)) {
        return;
    }
    armed_.reset();
    run_step(now, Tick{}, out);
    arm(now, out);
}

void JobHost::admit_hold_up(Instant now, HostEffects& out) {
    const Limits& limits = options_.coordinator.limits;
    const bool was_held_up =
        DDP_RULE(armed_ && now - *armed_ > limits.lease / 2, HoldUpUnnoticed, false);
    if (!was_held_up || !options_.coordinator.has_leases) {
        return;
    }
    DDP_PROBE(held_up);
    const Duration by = now - *armed_;
    armed_ = now;  // told once
    out.now.emplace_back(
        Trace{fmt::format("this process was held up for {} ms: leases are extended",
                          std::chrono::duration_cast<Milliseconds>(by).count())});
    run_step(now, HeldUp{by}, out);
}

std::optional<Instant> JobHost::wanted_timer() const {
    std::optional<Instant> at = coordinator_.next_deadline();
    for (const std::optional<Instant>& other : {patience_at_, write_at_}) {
        if (other && (!at || *other < *at)) {
            at = other;
        }
    }
    return at;
}

void JobHost::arm(Instant now, HostEffects& out) {
    const std::optional<Instant> wanted = wanted_timer();
    if (!wanted || (armed_ && *armed_ <= *wanted)) {
        return;
    }
    // A deadline in the past does not mean that the loop was stalled.
    armed_ = std::max(*wanted, now);
    out.timer = armed_;
}

// ----------------------------------------------------------------------------------------- records

void JobHost::hold(Effect effect, HostEffects& out) {
    if (is_acknowledgement(effect)) {
        out.now.push_back(std::move(effect));
    } else {
        held_.emplace_back(DDP_RULE(gate_, ToldBeforeWritten, 0), std::move(effect));
    }
}

void JobHost::release(HostEffects& out) {
    while (!held_.empty() && held_.front().first <= open_) {
        out.now.push_back(std::move(held_.front().second));
        held_.pop_front();
    }
}

void JobHost::persist(Instant now, RecordWrite kind, HostEffects& out) {
    if (kind == RecordWrite::None || options_.keeping == Keeping::Nowhere) {
        return;
    }
    is_outdated_ = true;
    const bool is_awaited = kind == RecordWrite::Awaited;
    if (!is_awaited) {
        write_behind(now, out);
        return;
    }
    write(now, out);
    const bool is_first = open_ >= gate_;
    gate_ = asked_;
    if (!awaits_records()) {
        DDP_PROBE(told_without_its_record);
        open_ = gate_;  // writes are known to fail: this one is not waited for
    } else if (DDP_RULE(is_first, RefusedRecordAwaited, is_first && !is_strict())) {
        patience_at_ = now + patience();
    }
}

Milliseconds JobHost::patience() const {
    const Limits& limits = options_.coordinator.limits;
    return is_strict() ? limits.etcd_record_patience : limits.journal_timeout;
}

void JobHost::write(Instant now, HostEffects& out) {
    is_outdated_ = false;
    std::optional<RunRecord> record = coordinator_.record(now);
    if (record) {
        write_at_.reset();
        const Duration of_nodes = std::chrono::seconds(record->nodes.size());
        pause_end_ = now + of_nodes / options_.coordinator.limits.nodes_recorded_per_second_max;
        out.writes.push_back(WriteRecord{.number = ++asked_, .record = *std::move(record)});
    }
}

/// One record at a time: the newest is all that counts.
void JobHost::write_behind(Instant now, HostEffects& out) {
    if (answered_ != asked_) {
        return;
    }
    if (pause_end_ <= now) {
        write(now, out);
    } else if (!write_at_ || *write_at_ > pause_end_) {
        DDP_PROBE(record_paused);
        write_at_ = pause_end_;
    }
}

void JobHost::written(Instant now, std::uint64_t number, const std::string& fault,
                      HostEffects& out) {
    if (!decides(now)) {
        return;
    }
    answered_ = std::max(answered_, number);
    tell_fault(now, fault, out);
    if (fault.empty()) {
        open_ = std::max(open_, number);
        goes_without_ = false;
        retry_pause_ = options_.coordinator.limits.reconnect_backoff_min;
    } else {
        if (!awaits_records()) {
            open_ = std::max(open_, gate_);
        }
        if (DDP_RULE(answered_ == asked_, FailedRecordForgotten, false)) {
            try_again(now);
        }
    }
    if (open_ >= gate_) {
        patience_at_.reset();
    } else if (fault.empty()) {
        DDP_PROBE(slow_journal_awaited_anew);
        patience_at_ = now + patience();  // it works, and a later record is under way
    }
    if (is_outdated_) {
        DDP_PROBE(record_outdated_while_written);
        write_behind(now, out);
    }
    release(out);
    arm(now, out);
}

/// The disk may have room again in an hour, and nothing else may happen to the run until then. A
/// strict one is tried soon while something waits for it, but a large record in no hot loop.
void JobHost::try_again(Instant now) {
    const Milliseconds most = options_.coordinator.limits.reconnect_backoff_max;
    if (is_strict() && awaits_records()) {
        write_at_ = now + std::exchange(retry_pause_, std::min(2 * retry_pause_, most));
    } else {
        write_at_ = now + most;
    }
}

/// A leader decides on: its lease goes on, so no other one decides, and a leader that is cut off
/// from etcd has lost its lease before its patience ends.
void JobHost::give_up_waiting(Instant now, HostEffects& out) {
    DDP_PROBE(journal_given_up);
    patience_at_.reset();
    open_ = std::max(open_, gate_);
    goes_without_ = true;
    if (is_strict()) {
        DDP_PROBE(leader_goes_on_without_etcd);
        out.now.emplace_back(Trace{fmt::format(
            "etcd has not taken this run's record for {} ms: the run goes on without high "
            "availability until it does",
            patience().count())});
    }
    if (fault_.empty()) {
        tell_fault(now, fmt::format("the journal has not answered for {} ms", patience().count()),
                   out);
    }
    // The nodes that joined meanwhile were not answered, and do not beat before.
    run_step(now, HeldUp{}, out);
    release(out);
}

void JobHost::tell_fault(Instant now, const std::string& fault, HostEffects& out) {
    const Milliseconds pause = options_.coordinator.limits.reconnect_backoff_max;
    const bool goes_on = !fault.empty() && !fault_.empty();
    // The same fault may count bytes, and what is told of it makes the record larger.
    const bool is_another =
        goes_on && now - fault_told_at_ >= pause && without_digits(fault) != without_digits(fault_);
    if ((goes_on && !is_another) || (fault.empty() && fault_.empty())) {
        return;
    }
    fault_ = fault;
    fault_told_at_ = now;
    if (!fault.empty()) {
        out.now.emplace_back(Trace{fmt::format("is not durable: {}", fault)});
    }
    if (is_another) {
        run_step(now, Durability{fault_}, out);
    } else {
        tell_run(now, out);
    }
}

void JobHost::tell_run(Instant now, HostEffects& out) {
    run_step(now, Durability{fault_}, out);
    if (!fault_.empty() && is_strict()) {
        DDP_PROBE(etcd_refused_a_record);
        // Nothing goes out until it is: who joins is not answered, and does not beat before.
        run_step(now, HeldUp{}, out);
    }
}

}  // namespace ddprun::rdzv
