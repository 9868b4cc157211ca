// One generation on this node: start, deaths, stop, proof that nothing is left.

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "agent/supervise/supervisor.hpp"
#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

namespace {

/// Signals that operators and schedulers send to everything of a job at once.
bool may_be_meant_for_all(const rdzv::Evidence& evidence) {
    return evidence.signal.has_value() && !evidence.keeper_lost &&
           (*evidence.signal == SIGTERM || *evidence.signal == SIGINT ||
            *evidence.signal == SIGHUP);
}

/// A drain ends with the first order that is none; a worker that has been signalled is not asked.
StopManner manner_after(StopManner current, bool is_drain_wanted) {
    const bool ends_drain = current == StopManner::Drain && !is_drain_wanted;
    return ends_drain ? StopManner::AfterDrain : current;
}

}  // namespace

bool Supervisor::holds_workers() const {
    return group_.has_value() && !group_->is_in<WorkersGone>();
}

Generation Supervisor::newest_known() const {
    if (group_.has_value() && group_token_ == run_token_) {
        return std::max(group_->generation(), fenced_);
    }
    return fenced_;
}

std::string Supervisor::flaw_of(const rdzv::Start& row) const {
    if (holds_workers()) {
        return fmt::format("generation {} is not proven to be gone", group_->generation().value());
    }
    if (holds_prepare()) {
        return "its prepare command still runs";
    }
    if (row.group_rank < 0 || row.group_rank >= row.group_world_size || row.base_rank < 0 ||
        row.base_rank + options_.identity.slots > row.world_size) {
        return fmt::format("node {} of {}, ranks from {} of {}, with {} workers here",
                           row.group_rank, row.group_world_size, row.base_rank, row.world_size,
                           options_.identity.slots);
    }
    if (row.group_rank == 0 && (store_ != StoreState::Listening || row.store != store_address_)) {
        return fmt::format("its store {}:{} is not the socket that waits here, {}:{}",
                           row.store.host, row.store.port, store_address_.host,
                           store_address_.port);
    }
    return {};
}

void Supervisor::hear(const rdzv::Start& message) {
    highest_heard_ = std::max(highest_heard_, message.generation);
    if (message.generation <= newest_known()) {
        trace(fmt::format("start of generation {} ignored: {} is known", message.generation.value(),
                          newest_known().value()));
        return;
    }
    const std::string flaw = flaw_of(message);
    if (!flaw.empty()) {
        fail_internally(fmt::format("the rendezvous started generation {} here, but {}",
                                    message.generation.value(), flaw));
        return;
    }
    begin_generation(message);
}

void Supervisor::begin_generation(const rdzv::Start& row) {
    DDP_CHECK(!holds_workers(), row.generation.value());
    group_.emplace(row, options_.identity.slots);
    owed_ = Generation();
    group_token_ = run_token_;
    group_->publish_until = publish_until();
    if (!options_.debugging) {
        quiet_.begin(now_);
    }
    rendezvous_wait_ = {};
    if (group_->serves_store()) {
        store_ = StoreState::Serving;
        emit(ServeStore{
            .generation = row.generation, .admitted = row.admitted, .clients = row.world_size});
    }
    const bool is_plain = options_.identity.settings.max_nodes == 1 && row.why.empty();
    if (!is_plain) {
        const int last = row.base_rank + options_.identity.slots - 1;
        const std::string ranks = last == row.base_rank
                                      ? fmt::format("rank {}", last)
                                      : fmt::format("ranks {}-{}", row.base_rank, last);
        say(fmt::format("generation {}: {} worker{} on {} node{}, {} here{}{}",
                        row.generation.value(), row.world_size, row.world_size == 1 ? "" : "s",
                        row.group_world_size, row.group_world_size == 1 ? "" : "s", ranks,
                        row.why.empty() ? "" : "; ", row.why));
    }
    say_who_is_debugged(row);
    const StoreAddress& store = row.store.port == 0 ? rendezvous_ : row.store;
    StartWorkers start = start_of(*group_, options_, store, store_address_.host);
    if (options_.relays_store && !group_->serves_store()) {
        start.relayed_store = store;
    }
    emit(std::move(start));
}

/// Once, unless another generation has changed it.
void Supervisor::say_who_is_debugged(const rdzv::Start& row) {
    if (!options_.debugging || !options_.debugging->is_asked) {
        return;
    }
    const int rank = options_.debugging->rank.value();
    const bool is_here = rank >= row.base_rank && rank < row.base_rank + options_.identity.slots;
    std::string text;
    if (rank >= row.world_size) {
        text = fmt::format("--debug-rank {}: there are ranks 0 to {} only, nobody has a terminal",
                           rank, row.world_size - 1);
    } else if (!is_here) {
        text = fmt::format(
            "--debug-rank {}: it is on another node; what workers here write is in "
            "their logs only",
            rank);
    } else if (!options_.debugging->has_terminal) {
        text = fmt::format(
            "--debug-rank {}: it is here, but stdin and stdout of this ddprun are no "
            "terminal, nothing can be typed to it; start this ddprun at one (ssh -t)",
            rank);
    } else {
        text = fmt::format(
            "rank {} has this terminal: Ctrl-C goes to it, three quick ones end the "
            "job; the others write to their logs only, hangs are not looked for",
            rank);
    }
    if (std::exchange(said_of_debugging_, text) != text) {
        say(text);
    }
}

// --------------------------------------------------------------------------------------- deaths

void Supervisor::take(const WorkerExited& input) {
    if (!holds_workers() || input.generation != group_->generation()) {
        return;
    }
    DDP_CHECK(input.local_rank.value() >= 0 && input.local_rank.value() < options_.identity.slots,
              input.local_rank.value());
    const bool is_users_end = is_ended_by_user(input);
    if (is_users_end) {
        leaving_ = Leaving{.signal = input.typed_signal, .since = now_};
    }
    end_worker(input.local_rank, input.evidence, input.saved);
    if (is_users_end) {
        begin_to_leave(!group_->has_all_exited());
    }
    if (!group_->has_all_exited()) {
        if (quiet_.show_life(now_)) {
            tell_quiet();
        }
        return;
    }
    quiet_.end();
    if (const WorkersStop* stop = std::get_if<WorkersStop>(&group_->phase);
        stop != nullptr && stop->manner == StopManner::Drain) {
        deadlines_.learn_saving(now_ - stop->since);
    }
    if (!group_->is_in<WorkersRun>()) {
        kill_workers();
    }
}

/// Its failure is told at once; that it is gone, when it is.
void Supervisor::take(const WorkerDying& input) {
    if (!holds_workers() || input.generation != group_->generation()) {
        return;
    }
    WorkerFate& fate = group_->fates.at(static_cast<std::size_t>(input.local_rank.value()));
    const bool is_own_failure = group_->is_in<WorkersRun>() && !is_leaving() &&
                                std::holds_alternative<Alive>(fate) &&
                                !may_be_meant_for_all(input.evidence);
    if (is_own_failure) {
        report_failure(input.local_rank, input.evidence, now_);
        fate = Failing{.evidence = input.evidence, .at = now_};
        collect_last_words(input.local_rank);
    }
}

/// The report does not wait for a slow disk: it is sent first, and completed later.
void Supervisor::collect_last_words(LocalRank local_rank) {
    group_->await_words(local_rank);
    emit(CollectLastWords{.generation = group_->generation(), .local_rank = local_rank});
}

void Supervisor::take(const LastWords& input) {
    if (!group_.has_value() || input.generation != group_->generation()) {
        return;
    }
    rdzv::Evidence* evidence = group_->settle_words(input.local_rank);
    if (evidence == nullptr) {
        return;
    }
    if (!input.stderr_tail.empty() || !input.stdout_tail.empty() || !input.error_file.empty()) {
        evidence->stderr_tail = input.stderr_tail;
        evidence->stdout_tail = input.stdout_tail;
        evidence->error_file = input.error_file;
        if (group_token_ == run_token_) {
            report_again(input.local_rank);
        }
    }
    report_stopped();
}

void Supervisor::end_worker(LocalRank local_rank, rdzv::Evidence evidence, const SavedWork& saved) {
    WorkerFate& fate = group_->fates[static_cast<std::size_t>(local_rank.value())];
    if (Failing* failing = std::get_if<Failing>(&fate)) {
        Failed failed = failed_of(std::move(*failing));
        if (evidence.core_dumped && !failed.evidence.core_dumped) {
            failed.evidence.core_dumped = true;
            report_failure(local_rank, failed.evidence, failed.at);
        }
        fate = std::move(failed);
    }
    if (!std::holds_alternative<Alive>(fate)) {
        return;
    }
    const bool is_asked_to_go = !group_->is_in<WorkersRun>() || is_leaving();
    if (DDP_RULE(is_asked_to_go, LeftCountsAsFinished, is_asked_to_go && evidence.exit_code != 0)) {
        fate = Left{.exit_code = evidence.exit_code, .step = evidence.progress, .saved = saved};
    } else if (evidence.exit_code == 0) {
        fate = Finished{};
        tell(rdzv::WorkerFinished{.generation = group_->generation(), .local_rank = local_rank});
    } else if (may_be_meant_for_all(evidence)) {
        fate = HeldBack{.evidence = std::move(evidence),
                        .at = now_,
                        .judged_at = now_ + options_.limits.signal_death_patience};
        collect_last_words(local_rank);
    } else {
        const bool has_words = !evidence.keeper_lost;
        Failed failed{.evidence = std::move(evidence), .at = now_};
        report_failure(local_rank, failed.evidence, failed.at);
        fate = std::move(failed);
        if (has_words) {
            collect_last_words(local_rank);
        }
    }
}

void Supervisor::report_failure(LocalRank local_rank, const rdzv::Evidence& evidence, Instant at) {
    rdzv::WorkerFailed report{
        .generation = group_->generation(), .local_rank = local_rank, .evidence = evidence};
    report.evidence.age = std::chrono::duration_cast<Milliseconds>(now_ - at);
    tell(std::move(report));
}

/// One that was reported before; the rendezvous counts it once.
void Supervisor::report_again(LocalRank local_rank) {
    const WorkerFate& fate = group_->fates.at(static_cast<std::size_t>(local_rank.value()));
    if (const Failed* failed = std::get_if<Failed>(&fate)) {
        report_failure(local_rank, failed->evidence, failed->at);
    } else if (const Failing* failing =
                   DDP_RULE(std::get_if<Failing>(&fate), DyingForgottenOnReconnect, nullptr)) {
        report_failure(local_rank, failing->evidence, failing->at);
    }
}

void Supervisor::judge_held_back(bool is_all) {
    if (!group_.has_value()) {
        return;
    }
    for (std::size_t i = 0; i < group_->fates.size(); ++i) {
        HeldBack* held = std::get_if<HeldBack>(&group_->fates[i]);
        if (held == nullptr || (!is_all && now_ < held->judged_at)) {
            continue;
        }
        Failed failed = failed_of(std::move(*held));
        report_failure(LocalRank(static_cast<int>(i)), failed.evidence, failed.at);
        group_->fates[i] = std::move(failed);
    }
}

void Supervisor::forgive_held_back() {
    if (!group_.has_value()) {
        return;
    }
    for (WorkerFate& fate : group_->fates) {
        if (std::holds_alternative<HeldBack>(fate)) {
            fate = Left{};
        }
    }
}

void Supervisor::take(const KeeperLost& /*input*/) {
    if (holds_prepare()) {
        if (prepare_ != PrepareState::Killing) {
            prepare_end_ = {.fault = "died with ddprun-keeper",
                            .exit_code = kExitSignalBase + SIGKILL};
        }
        prepare_is_gone();
        return;
    }
    if (!holds_workers()) {
        return;
    }
    if (group_->is_in<WorkersKilling>()) {
        // The old keeper may have died with the order.
        emit(EmptyGeneration{group_->generation()});
        return;
    }
    bool is_reported = !group_->is_in<WorkersRun>();
    end_failing_workers();
    for (std::size_t i = 0; i < group_->fates.size(); ++i) {
        if (!std::holds_alternative<Alive>(group_->fates[i])) {
            continue;
        }
        if (is_reported) {
            group_->fates[i] = Left{};
            continue;
        }
        rdzv::Evidence evidence;
        evidence.signal = SIGKILL;
        evidence.keeper_lost = true;
        evidence.program = options_.command.front();
        evidence.log_dir =
            worker_log_dir(options_.log_dir, group_->generation(), LocalRank(static_cast<int>(i)));
        end_worker(LocalRank(static_cast<int>(i)), std::move(evidence), {});
        is_reported = true;
    }
    if (!group_->is_in<WorkersRun>()) {
        kill_workers();
    }
}

// ----------------------------------------------------------------------------------------- stop

void Supervisor::hear(const rdzv::Stop& message) {
    highest_heard_ = std::max(highest_heard_, message.generation);
    const bool is_held = holds_workers();
    if (is_held && group_->generation() == message.generation) {
        owed_ = message.generation;
        if (message.cause == rdzv::StopCause::Failure || message.cause == rdzv::StopCause::Hang) {
            judge_held_back(true);
        } else {
            forgive_held_back();
        }
        if (message.cause == rdzv::StopCause::Fenced) {
            supersede_group();
        }
        const bool hangs = message.cause == rdzv::StopCause::Hang && !group_->has_all_exited() &&
                           (group_->is_in<WorkersRun>() || group_->is_in<WorkersHang>());
        if (hangs) {
            begin_to_save_stacks(message);
            return;
        }
        stop_workers({.signal = message.signal,
                      .grace = message.grace,
                      .is_drain = message.cause == rdzv::StopCause::Grow ||
                                  message.cause == rdzv::StopCause::Leave,
                      .within = message.within});
        return;
    }
    if (message.generation < newest_known()) {
        tell(rdzv::Stopped{.generation = message.generation, .store = store_address_});
        return;
    }
    // A fence names what we held when we joined, which may be of an earlier run: it says nothing
    // about this run's generation of the same number.
    const bool is_fence = message.cause == rdzv::StopCause::Fenced && group_.has_value() &&
                          group_->generation() == message.generation;
    if (!is_fence) {
        fenced_ = std::max(fenced_, message.generation);
    }
    owed_ = message.generation;
    if (is_held) {
        // Its end is proven by the end of what lives here; the answer follows then.
        supersede_group();
        stop_workers({.signal = message.signal, .grace = message.grace});
    }
    report_stopped();
}

void Supervisor::stop_workers(const StopOrder& order) {
    DDP_CHECK(holds_workers());
    quiet_.end();
    if (group_->is_in<WorkersKilling>()) {
        return;
    }
    if (group_->has_all_exited()) {
        kill_workers();
        return;
    }
    WorkersStop next{.since = now_,
                     .kill_at = now_ + deadlines_.within(now_, order.grace),
                     .signal = order.signal,
                     .manner = order.is_drain ? StopManner::Drain : StopManner::Signal};
    if (const WorkersHang* hang = std::get_if<WorkersHang>(&group_->phase)) {
        // They are being stopped already: no later order gives them longer, or asks them.
        next.kill_at = std::min(next.kill_at, now_ + hang->grace);
        next.manner = StopManner::Signal;
    }
    next.leave_by = order.within == Duration::zero() ? next.kill_at
                                                     : std::min(next.kill_at, now_ + order.within);
    bool is_deadline_new = true;
    bool is_signal_new = true;
    if (const WorkersStop* current = std::get_if<WorkersStop>(&group_->phase)) {
        next.since = current->since;
        next.kill_at = std::min(next.kill_at, current->kill_at);
        next.manner = manner_after(current->manner, order.is_drain);
        next.leave_by = std::min({next.leave_by, next.kill_at, current->leave_by});
        is_deadline_new = next.leave_by != current->leave_by;
        // A drain that becomes a stop has left out those that were asked.
        is_signal_new = current->signal != order.signal || current->manner != next.manner;
    }
    group_->phase = next;
    if (next.manner != StopManner::Signal && is_deadline_new) {
        emit(AskWorkersToLeave{
            .generation = group_->generation(), .signal = order.signal, .deadline = next.leave_by});
    }
    if (is_signal_new) {
        emit(SignalWorkers{.generation = group_->generation(),
                           .signal = order.signal,
                           .spares_asked = next.manner == StopManner::Drain});
    }
}

void Supervisor::kill_workers() {
    DDP_CHECK(holds_workers());
    quiet_.end();
    if (!group_->is_in<WorkersKilling>()) {
        forgive_held_back();
        group_->phase = WorkersKilling{.since = now_};
        emit(EmptyGeneration{group_->generation()});
        DDP_RULE(void(), EmptyBeforeProof, take(Emptied{group_->generation()}));
    }
}

void Supervisor::take(const Emptied& input) {
    if (input.generation == kPrepareGeneration && prepare_ == PrepareState::Killing) {
        prepare_is_gone();
        return;
    }
    if (!holds_workers() || input.generation != group_->generation() ||
        !group_->is_in<WorkersKilling>()) {
        return;
    }
    group_->phase =
        WorkersGone{.ended = std::get<WorkersKilling>(group_->phase).since, .since = now_};
    if (group_token_ == run_token_) {
        owed_ = std::max(owed_, group_->generation());
    }
    const bool has_served = store_ == StoreState::Serving;
    if (has_served || options_.relays_store) {
        emit(CloseStore{});
    }
    if (has_served) {
        store_ = StoreState::None;
    }
    if (ending_.has_value()) {
        finish();
    } else if (is_leaving() && !is_link_up()) {
        end_by_signal();
    } else {
        prepare_next();
    }
}

void Supervisor::report_stopped() {
    const bool is_failure_told = !group_.has_value() || !group_->awaits_words();
    if (owed_ != Generation() && !holds_workers() && is_failure_told &&
        store_ == StoreState::Listening && preparation_ == Preparation::None && is_accepted()) {
        rdzv::Stopped stopped{.generation = owed_, .store = store_address_};
        if (group_.has_value() && group_->generation() == owed_) {
            const WorkersGone& gone = std::get<WorkersGone>(group_->phase);
            stopped.ended_age = std::chrono::duration_cast<Milliseconds>(now_ - gone.ended);
            stopped.empty_age = std::chrono::duration_cast<Milliseconds>(now_ - gone.since);
        }
        tell(std::move(stopped));
        owed_ = Generation();
    }
}

/// In every phase: a keeper that has died leaves no process behind that could be asked again.
void Supervisor::take(const NotEmptied& input) {
    say(fmt::format("{} could not be killed; this node is of no use until it is gone", input.what));
    if (holds_workers()) {
        quiet_.end();
        tell(rdzv::Unkillable{group_->generation()});
    }
    ending_ = Ending{.reason = ExitReason::Unkillable,
                     .exit_code = kExitUnkillable,
                     .verdict = ending_.has_value() ? ending_->verdict : std::nullopt,
                     .verdict_at = ending_.has_value() ? ending_->verdict_at : now_};
    finish();
}

}  // namespace ddprun::agent
