// How an agent goes: signals, notices and leaving, verdict and refusal, a rendezvous that is lost.

#include <algorithm>
#include <chrono>
#include <csignal>

#include <fmt/format.h>

#include "agent/supervise/supervisor.hpp"
#include "base/check.hpp"
#include "base/signal_name.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

int Supervisor::signal_exit_code() const {
    DDP_CHECK(is_leaving());
    return leaving_->is_by_notice ? int{kExitDrained} : kExitSignalBase + leaving_->signal;
}

// -------------------------------------------------------------------------------------- signals

void Supervisor::take(const Signalled& input) {
    if (is_leaving()) {
        const bool is_second_interrupt =
            input.signal == SIGINT &&
            now_ - leaving_->since >= options_.limits.second_interrupt_after;
        if (is_second_interrupt) {
            abort_now();
        }
        return;
    }
    leaving_ = Leaving{.signal = input.signal, .since = now_, .workers_save = input.workers_save};
    if (input.signal == SIGTERM) {
        deadlines_.take_sigterm(now_);
    }
    begin_to_leave(true);
}

// -------------------------------------------------------------------------------------- notices

/// The drain follows when it is due; one that is under way has no longer than this leaves.
void Supervisor::take(const LeaveNotice& input) {
    deadlines_.add(now_, input);
    const WorkersStop* stop =
        group_.has_value() ? std::get_if<WorkersStop>(&group_->phase) : nullptr;
    if (stop != nullptr) {
        stop_workers({.signal = stop->signal,
                      .grace = std::max(stop->kill_at - now_, Duration::zero()),
                      .is_drain = stop->manner == StopManner::Drain});
    }
}

/// Returns nothing if nothing asks for it, or this node leaves already.
std::optional<Instant> Supervisor::leave_at() const {
    if (is_leaving() || ending_.has_value()) {
        return std::nullopt;
    }
    const WorkersStop* stop =
        group_.has_value() ? std::get_if<WorkersStop>(&group_->phase) : nullptr;
    return deadlines_.due_at(stop != nullptr && stop->manner == StopManner::Drain);
}

void Supervisor::leave_if_due() {
    const std::optional<Instant> due = leave_at();
    if (due.has_value() && now_ >= *due) {
        leaving_ = Leaving{.since = now_, .is_by_notice = true};
        begin_to_leave(true);
    }
}

// -------------------------------------------------------------------------------------- leaving

LeaveCause Supervisor::leave_cause() const {
    if (!is_leaving() || !ending_.has_value() || leaving_->signal == SIGINT) {
        return LeaveCause::None;
    }
    const bool is_stopped =
        ending_->verdict.has_value() && ending_->verdict->kind == rdzv::VerdictKind::Stopped;
    const bool has_left = ending_->reason == ExitReason::Signal ||
                          ending_->reason == ExitReason::Released || is_stopped;
    if (!has_left) {
        return LeaveCause::None;
    }
    if (!leaves_by_notice()) {
        return LeaveCause::Signal;
    }
    return deadlines_.is_planned() ? LeaveCause::TimeLimit : LeaveCause::Notice;
}

std::optional<Milliseconds> Supervisor::saving() const {
    const std::optional<Duration> known = deadlines_.saving();
    return known.has_value() ? std::optional(std::chrono::duration_cast<Milliseconds>(*known))
                             : std::nullopt;
}

std::string Supervisor::why_leaving() const {
    return leaves_by_notice() ? deadlines_.why(now_) : signal_name(leaving_->signal);
}

std::string Supervisor::why_left() const {
    return why_leaving() + ": this node has left the job";
}

/// As `leaving_` says.
void Supervisor::begin_to_leave(bool is_said) {
    if (ending_.has_value()) {
        return;
    }
    forgive_held_back();
    if (run_token_.empty()) {
        if (leaves_by_notice()) {
            say(why_leaving() + ": leaving the job");
        }
        end_by_signal();
    } else if (!is_link_up()) {
        leave_alone();
    } else {
        if (is_said && holds_workers()) {
            say(leaving_text());
        } else if (is_said) {
            say(fmt::format("{}: leaving the job", why_leaving()));
        }
        tell_leave();
    }
}

/// Describes what the workers do now, for how long if that is known, and how not to wait for it.
std::string Supervisor::leaving_text() const {
    const auto in_seconds = [](Duration time) {
        return std::chrono::duration_cast<std::chrono::seconds>(time).count();
    };
    const auto grace =
        in_seconds(deadlines_.within(now_, options_.identity.settings.shutdown_timeout));
    const std::string what =
        leaving_->workers_save ? fmt::format("saving, for at most {} s", grace)
                               : fmt::format("stopping, workers have {} s to save and end", grace);
    const std::string how_to_abort = fmt::format(
        "press Ctrl-C {}after {} s to abort", leaving_->signal == SIGINT ? "again " : "",
        in_seconds(options_.limits.second_interrupt_after));
    return fmt::format("{}: {}; {}", why_leaving(), what, how_to_abort);
}

/// With the time that this node's workers have left, if a notice has said when the node goes.
void Supervisor::tell_leave() {
    const Milliseconds usual = options_.identity.settings.shutdown_timeout;
    const auto left = std::chrono::duration_cast<Milliseconds>(deadlines_.within(now_, usual));
    const bool is_sooner = left < usual;
    tell(rdzv::Leave{.signal = leaving_->signal,
                     .within = is_sooner ? std::max(left, Milliseconds(1)) : Milliseconds(0)});
}

/// A user at the worker's terminal wanted that: no failure, and nothing to restart.
bool Supervisor::is_ended_by_user(const WorkerExited& input) const {
    const auto index = static_cast<std::size_t>(input.local_rank.value());
    return input.typed_signal != 0 && !is_leaving() && group_->is_in<WorkersRun>() &&
           std::holds_alternative<Alive>(group_->fates[index]);
}

void Supervisor::take(const WorkersSignalled& input) {
    if (holds_workers() && !group_->is_in<WorkersKilling>()) {
        emit(ForwardSignal{group_->generation(), input.signal});
    } else {
        say(fmt::format("{}: there are no workers to pass it on to", signal_name(input.signal)));
    }
}

void Supervisor::abort_now() {
    if (holds_workers() && !group_->is_in<WorkersKilling>()) {
        say("SIGINT again: killing the workers");
        kill_workers();
    }
    if (prepare_ == PrepareState::Runs || prepare_ == PrepareState::Stops) {
        say("SIGINT again: killing the prepare command");
        kill_prepare();
    }
    if (!ending_.has_value()) {
        end_with({.reason = ExitReason::Signal,
                  .exit_code = kExitSignalBase + SIGINT,
                  .why = "SIGINT again: aborted"});
    }
}

void Supervisor::end_by_signal() {
    end_with({.reason = ExitReason::Signal, .exit_code = signal_exit_code(), .why = why_left()});
}

void Supervisor::leave_alone() {
    DDP_CHECK(is_leaving() && !is_link_up());
    if (!holds_workers()) {
        end_by_signal();
        return;
    }
    if (group_->is_in<WorkersRun>()) {
        say(fmt::format("{} while the rendezvous is out of reach: stopping the workers here",
                        why_leaving()));
    }
    stop_workers({.signal = leaving_->signal,
                  .grace = options_.identity.settings.shutdown_timeout,
                  .is_drain = true});
}

// ------------------------------------------------------------------- what the rendezvous decides

void Supervisor::hear(const rdzv::Released& /*message*/) {
    const int code = is_leaving() ? signal_exit_code() : int{kExitDrained};
    end_after_stop({.reason = ExitReason::Released,
                    .exit_code = code,
                    .why = is_leaving() ? why_left() : "this node was told to leave"});
}

void Supervisor::hear(const rdzv::Refused& message) {
    end_saying(
        message.text,
        {.reason = ExitReason::Refused, .exit_code = message.exit_code, .says_goodbye = false});
}

void Supervisor::end_for_old_rendezvous(const std::string& flags, const std::string& others) {
    end_saying(
        fmt::format("the rendezvous is an older ddprun's, which would overlook {}; update it, or "
                    "start with {} on every node",
                    flags, others),
        {.reason = ExitReason::Refused, .exit_code = kExitUsage});
}

void Supervisor::hear(const rdzv::Verdict& message) {
    const bool is_own_signal = message.kind == rdzv::VerdictKind::Stopped && is_leaving();
    Ending ending{.reason = ExitReason::Verdict,
                  .exit_code = is_own_signal ? signal_exit_code() : message.exit_code,
                  .verdict = message,
                  .verdict_at = now_};
    if (message.kind == rdzv::VerdictKind::Succeeded && holds_workers()) {
        // Every rank has exited 0: what is left are strays.
        ending_ = std::move(ending);
        kill_workers();
    } else {
        end_after_stop(std::move(ending));
    }
}

// --------------------------------------------------------------------------------------- the end

void Supervisor::lose_rendezvous() {
    const LinkIsDown* down = std::get_if<LinkIsDown>(&link_);
    const std::string why = down != nullptr ? down->why : "it does not answer";
    const std::string reason = why.empty() ? "" : fmt::format(" ({})", why);
    end_saying(run_token_.empty() ? fmt::format("no rendezvous within {} s{}",
                                                options_.connect_timeout.count() / 1000, reason)
                                  : fmt::format("rendezvous lost: out of reach for {} s{}",
                                                lost_timeout().count() / 1000, reason),
               {.reason = ExitReason::RendezvousLost, .exit_code = kExitRendezvousLost});
}

void Supervisor::fail_internally(const std::string& what) {
    end_saying(fmt::format("{}: this is a bug, please report it", what),
               {.reason = ExitReason::Bug, .exit_code = kExitInternal});
}

void Supervisor::end_saying(const std::string& why, Ending ending) {
    say(why);
    ending.why = why;
    end_after_stop(std::move(ending));
}

void Supervisor::end_after_stop(Ending ending) {
    DDP_CHECK(!ending_.has_value());
    if (holds_workers()) {
        judge_held_back(true);
        stop_workers({.signal = SIGTERM, .grace = options_.identity.settings.failure_grace});
    }
    end_with(std::move(ending));
}

void Supervisor::end_with(Ending ending) {
    ending_ = std::move(ending);
    if (holds_prepare()) {
        stop_prepare();
    } else if (!holds_workers()) {
        finish();
    }
}

/// The workers left as they were asked: where they have put their work.
void Supervisor::say_saved() {
    const bool is_stopped =
        ending_->verdict.has_value() && (ending_->verdict->kind == rdzv::VerdictKind::Stopped ||
                                         ending_->verdict->kind == rdzv::VerdictKind::Ended);
    const std::string text = group_.has_value() ? group_->saved_text() : "";
    if (!text.empty() && (is_leaving() || is_stopped)) {
        say(text);
    }
}

void Supervisor::finish() {
    DDP_CHECK(ending_.has_value() && !is_done_);
    if (ending_->verdict.has_value()) {
        rdzv::Verdict verdict = *ending_->verdict;
        verdict.age += std::chrono::duration_cast<Milliseconds>(now_ - ending_->verdict_at);
        emit(ShowVerdict{std::move(verdict)});
    }
    if (has_joined() && ending_->says_goodbye) {
        emit(SendToRendezvous{
            rdzv::Goodbye{.unfit = ending_->unfit,
                          .unprepared = ending_->unprepared,
                          .exit_code = ending_->unprepared.empty() ? 0 : ending_->exit_code}});
    }
    say_saved();
    emit(Exit{.code = ending_->exit_code, .why = ending_->why});
    is_done_ = true;
}

}  // namespace ddprun::agent
