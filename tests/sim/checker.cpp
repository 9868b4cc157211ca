#include "tests/sim/checker.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

namespace {

bool is_proof_of_emptiness(const rdzv::Input& input) {
    const rdzv::Received* received = std::get_if<rdzv::Received>(&input);
    return received != nullptr && std::holds_alternative<rdzv::Stopped>(received->message);
}

/// Whom a word concerns that comes from outside of the run.
bool can_judge_unfit(const rdzv::Run* run) {
    return run != nullptr && !std::holds_alternative<rdzv::Closed>(run->phase) &&
           !std::holds_alternative<rdzv::Adopting>(run->phase) &&
           !std::holds_alternative<rdzv::Restored>(run->phase);
}

bool is_for_failure(rdzv::StopCause cause) {
    return cause == rdzv::StopCause::Failure || cause == rdzv::StopCause::Hang;
}

}  // namespace

void Checker::violate(const std::string& property, const std::string& what) {
    if (!violation_.has_value()) {
        violation_ = fmt::format("{}: {}", property, what);
    }
}

const GenerationTruth* Checker::truth_of(const std::string& digest) const {
    const auto found = truths_.find(digest);
    return found == truths_.end() ? nullptr : &found->second;
}

Checker::Snapshot Checker::snapshot_of(const rdzv::Run* run, bool is_whole) {
    Snapshot snapshot;
    if (run == nullptr) {
        return snapshot;
    }
    snapshot.token = run->token;
    snapshot.phase = run->phase.index() + 1;
    snapshot.generation = run->current.number;
    snapshot.digest = run->current.digest;
    snapshot.restarts = run->budgets.restarts_used;
    snapshot.losses = run->budgets.node_losses_used;
    snapshot.nodes = run->nodes.size();
    snapshot.parked = run->parked.size();
    snapshot.is_in_doubt = run->doubt.until.has_value();
    if (const rdzv::Running* running = std::get_if<rdzv::Running>(&run->phase)) {
        snapshot.quiet = running->quiet.size();
    }
    if (const rdzv::Stopping* stopping = std::get_if<rdzv::Stopping>(&run->phase)) {
        snapshot.failures = stopping->failures.size();
        snapshot.lost_nodes = stopping->lost_nodes.size();
        snapshot.cause = stopping->cause;
        snapshot.order = stopping->order.cause;
        snapshot.is_explained_by_loss = stopping->is_explained_by_loss;
    }
    for (auto it = run->nodes.begin(); is_whole && it != run->nodes.end(); ++it) {
        snapshot.finished += it->second.finished.size();
    }
    return snapshot;
}

void Checker::before_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input,
                          Instant now) {
    is_stale_ = false;
    is_repeated_ = false;
    cut_off_.reset();
    unfit_.reset();
    namesake_.reset();
    is_strangers_word_ = false;
    const rdzv::Run* run = coordinator.run();
    const rdzv::Received* received = std::get_if<rdzv::Received>(&input);
    if (received != nullptr && std::holds_alternative<rdzv::Unfit>(received->message)) {
        note_unfit(coordinator, std::get<rdzv::Unfit>(received->message), now);
    }
    if (received != nullptr && run != nullptr) {
        const bool is_report = std::holds_alternative<rdzv::WorkerFinished>(received->message) ||
                               std::holds_alternative<rdzv::WorkerFailed>(received->message) ||
                               std::holds_alternative<rdzv::Quiet>(received->message) ||
                               std::holds_alternative<rdzv::Stopped>(received->message);
        is_stale_ = is_report && generation_of(received->message) < run->current.number;
        const auto owner = run->nodes.by_connection().find(received->connection);
        if (owner != run->nodes.by_connection().end() &&
            (run->nodes.at(owner->second).standing() == rdzv::Standing::Unready ||
             run->nodes.at(owner->second).standing() == rdzv::Standing::Preparing)) {
            is_stale_ = false;  // it is about what that node holds, or has prepared
        }
        is_repeated_ = is_repeated(*run, *received);
        check_report(*run, *received, now);
        unfit_ = unfit_.has_value() ? unfit_ : unfit_of(*run, *received);
    }
    if (const rdzv::ConnectionEnded* ended = std::get_if<rdzv::ConnectionEnded>(&input)) {
        if (run != nullptr && has_leases_ && !ended->is_end_of_stream) {
            const auto owner = run->nodes.by_connection().find(ended->connection);
            if (owner != run->nodes.by_connection().end()) {
                cut_off_ = owner->second;
            }
        }
    }
    before_ = snapshot_of(run, is_stale_ || is_repeated_);
    newest_held_ = Generation();
    if (run != nullptr && before_.phase == kAdopting) {
        for (const auto& [connection, join] : run->parked) {
            newest_held_ = std::max(newest_held_, join.held ? join.held->generation : Generation());
        }
    }
}

std::optional<NodeId> Checker::unfit_of(const rdzv::Run& run, const rdzv::Received& received) {
    const auto* goodbye = std::get_if<rdzv::Goodbye>(&received.message);
    const auto owner = run.nodes.by_connection().find(received.connection);
    if (goodbye == nullptr || goodbye->unfit.empty() || owner == run.nodes.by_connection().end()) {
        return std::nullopt;
    }
    return owner->second;
}

/// Notes an Unfit, which a node sends instead of joining. A node of the run that says so of itself
/// is lost, as with a Goodbye. Any other sender changes only the quarantine, and no known node's.
void Checker::note_unfit(const rdzv::Coordinator& coordinator, const rdzv::Unfit& message,
                         Instant now) {
    const rdzv::Run* run = coordinator.run();
    const bool is_known = run != nullptr && run->nodes.contains(message.node);
    const bool is_itself = is_known && message.run_token == run->token &&
                           message.process == run->nodes.at(message.node).info.process;
    const std::optional<Instant> due = coordinator.next_deadline();
    is_strangers_word_ = !is_itself && (!due.has_value() || *due > now);
    const bool is_judged = can_judge_unfit(run);
    if (!is_judged) {
        unfit_told_[message.node] = now + limits_.quarantine_cooldown;
    } else if (is_known && !is_itself) {
        namesake_ = message.node;
        const auto found = run->quarantined.find(message.node);
        namesake_until_ = found == run->quarantined.end() ? Instant() : found->second.until;
    } else {
        unfit_ = message.node;
    }
}

void Checker::check_unfit(const rdzv::Run& run, Instant now) {
    const auto until_of = [&run](const NodeId& id) {
        const auto found = run.quarantined.find(id);
        return found == run.quarantined.end() ? Instant() : found->second.until;
    };
    if (namesake_ && (!run.nodes.contains(*namesake_) || until_of(*namesake_) != namesake_until_)) {
        violate("quarantine", fmt::format("node {} suffers from another ddprun with its name",
                                          namesake_->value()));
    }
    if (unfit_ && !std::holds_alternative<rdzv::Closed>(run.phase) &&
        until_of(*unfit_) < now + limits_.quarantine_cooldown) {
        violate("quarantine",
                fmt::format("node {} is not fit, and may be taken again at once", unfit_->value()));
    }
    if (!can_judge_unfit(&run)) {
        return;
    }
    for (const auto& [id, until] : std::exchange(unfit_told_, {})) {
        if (until > now && until_of(id) <= now && !run.nodes.contains(id)) {
            violate("quarantine",
                    fmt::format("node {} was not fit, which is forgotten", id.value()));
        }
    }
}

/// True if a member repeats its report of a rank: agents do so after every reconnect.
bool Checker::is_repeated(const rdzv::Run& run, const rdzv::Received& received) {
    const auto owner = run.nodes.by_connection().find(received.connection);
    if (owner == run.nodes.by_connection().end() ||
        generation_of(received.message) != run.current.number) {
        return false;
    }
    const rdzv::Node& node = run.nodes.at(owner->second);
    const auto is_known = [&](LocalRank rank) {
        return node.finished.contains(rank) || node.failed.contains(rank);
    };
    const auto* finished = std::get_if<rdzv::WorkerFinished>(&received.message);
    const auto* failed = std::get_if<rdzv::WorkerFailed>(&received.message);
    return (finished != nullptr && is_known(finished->local_rank)) ||
           (failed != nullptr && is_known(failed->local_rank));
}

/// Keeps what a member reports of its ranks, to judge by it later.
void Checker::check_report(const rdzv::Run& run, const rdzv::Received& received, Instant now) {
    const auto owner = run.nodes.by_connection().find(received.connection);
    const auto found = truths_.find(run.current.digest);
    if (owner == run.nodes.by_connection().end() || found == truths_.end() ||
        generation_of(received.message) != run.current.number) {
        return;
    }
    GenerationTruth& truth = found->second;
    const rdzv::Node& node = run.nodes.at(owner->second);
    const auto row = truth.group_ranks.find(owner->second);
    if (node.standing() != rdzv::Standing::Member || row == truth.group_ranks.end()) {
        return;
    }
    const auto* finished = std::get_if<rdzv::WorkerFinished>(&received.message);
    if (finished != nullptr && !node.finished.contains(finished->local_rank) &&
        !node.failed.contains(finished->local_rank)) {
        truth.finished_reports[owner->second] += 1;
    }
    const auto* failed = std::get_if<rdzv::WorkerFailed>(&received.message);
    if (failed != nullptr && !node.finished.contains(failed->local_rank)) {
        auto& reports = failed->evidence.hung ? truth.hung_since : truth.failed_at;
        reports.emplace(truth.base_ranks[row->second] + failed->local_rank.value(),
                        now - failed->evidence.age);
    }
}

void Checker::after_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input,
                         const rdzv::Effects& effects, Instant now) {
    const rdzv::Run* run = coordinator.run();
    if (run == nullptr) {
        return;
    }
    if (const auto* given = std::get_if<rdzv::OrderGiven>(&input)) {
        check_order(*run, *given, effects, now);
    }
    const Snapshot after = snapshot_of(run, is_stale_ || is_repeated_);
    if (is_stale_ && after != before_) {
        violate("S4", "a report of an older generation changed the run");
    }
    if (is_strangers_word_ && after != before_) {
        violate("S13", "who is not fit and has not joined changed the run");
    }
    if (is_repeated_ && after != before_) {
        violate("S8", "a report that was said again counted again");
    }
    if (after.token == before_.token) {
        if (after.generation < before_.generation) {
            violate("S1", "the generation went back");
        }
        if (before_.phase != kAdopting) {
            check_charges(*run, after, input);
        }
        check_losses(*run, after, input);
    }
    check_unfit(*run, now);
    if (run->timeline.size() > limits_.timeline_events_max + 1 ||
        after.failures > limits_.failures_kept_max || run->nodes.size() > limits_.nodes_max) {
        violate("S11", "a list of the run is longer than its limit");
    }
    if (after.token != before_.token) {
        starts_.clear();
    }
    if (before_.phase == kAdopting && after.phase != kAdopting && after.generation < newest_held_) {
        check_adoption(*run);
    }
    const auto truth = truths_.find(run->current.digest);
    if (truth != truths_.end()) {
        // Adopted without some of its members: where they were is forgotten.
        truth->second.is_whole &= truth->second.places.size() == run->current.places.size();
    } else if (!run->current.digest.empty()) {
        check_new_generation(*run, now);
    }
    effects.for_each([&](const rdzv::Effect& effect) {
        const rdzv::Send* send = std::get_if<rdzv::Send>(&effect);
        const rdzv::Stop* stop =
            send == nullptr ? nullptr : std::get_if<rdzv::Stop>(&send->message);
        if (stop != nullptr) {
            check_stop(*run, *stop);
        }
    });
    const rdzv::Closed* closed = std::get_if<rdzv::Closed>(&run->phase);
    const bool was_closed = before_.token == after.token && before_.phase == after.phase;
    if (closed != nullptr && !was_closed && !is_first_step_) {
        check_verdict(*run, closed->verdict);
    }
    if (after.phase == kStopping && !is_for_failure(after.order)) {
        last_drain_ = now;
    }
    check_events(*run, effects, after, now);
    check_start_is_due(*run, now);
    is_first_step_ = false;
}

/// Each order is answered once. A refused order changes nothing, an accepted one becomes an event.
void Checker::check_order(const rdzv::Run& run, const rdzv::OrderGiven& given,
                          const rdzv::Effects& effects, Instant now) {
    int answers = 0;
    int events = 0;
    bool is_taken = false;
    effects.for_each([&](const rdzv::Effect& effect) {
        if (const auto* ordered = std::get_if<rdzv::Ordered>(&effect)) {
            answers += ordered->number == given.number ? 1 : 0;
            is_taken = ordered->reply.fault == rdzv::OrderFault::None;
        } else if (const auto* published = std::get_if<rdzv::Publish>(&effect)) {
            events += published->event.kind == rdzv::EventKind::Operator ? 1 : 0;
        }
    });
    if (answers != 1 || events != (is_taken ? 1 : 0)) {
        violate("orders", fmt::format("an order has {} answers and {} events", answers, events));
    }
    if (!is_taken) {
        return;
    }
    if (given.order.action == rdzv::OperatorAction::Hold) {
        held_until_.erase(run.token);  // it is set anew
        holds_given_[given.number] = now + given.order.duration;
    } else if (given.order.action == rdzv::OperatorAction::Release && given.order.node.empty()) {
        held_until_.erase(run.token);
    } else if (given.order.action == rdzv::OperatorAction::Stop) {
        ended_.insert(run.token);
    } else if (given.order.action == rdzv::OperatorAction::Drain) {
        note_leaving();
    }
}

void Checker::order_answered(const rdzv::Run& run, std::uint64_t number) {
    const auto held = holds_given_.extract(number);
    if (!held.empty() && run.hold.has_value()) {
        held_until_[run.token] = held.mapped();
    }
}

/// Nothing starts while an operator was told that nothing does, nor with more nodes than it wants.
void Checker::check_orders_are_heeded(const rdzv::Run& run, Instant now) {
    const auto held = held_until_.find(run.token);
    const bool is_held = (held != held_until_.end() && held->second > now) ||
                         (run.hold.has_value() && run.hold->until > now);
    if (is_held) {
        violate("orders", "a generation starts although an operator holds the job");
    }
    if (run.target_nodes.has_value() &&
        run.current.places.size() > static_cast<std::size_t>(*run.target_nodes)) {
        violate("orders", fmt::format("{} nodes have places, an operator wants {}",
                                      run.current.places.size(), *run.target_nodes));
    }
}

/// A reader of the events alone knows which generation was started, how often, and the verdict.
void Checker::check_events(const rdzv::Run& run, const rdzv::Effects& effects,
                           const Snapshot& after, Instant now) {
    int starts = 0;
    int verdicts = 0;
    effects.for_each([&](const rdzv::Effect& effect) {
        const rdzv::Publish* published = std::get_if<rdzv::Publish>(&effect);
        if (published == nullptr) {
            return;
        }
        const rdzv::Event& event = published->event;
        starts += event.kind == rdzv::EventKind::Formed ? 1 : 0;
        verdicts += event.kind == rdzv::EventKind::Verdict ? 1 : 0;
        if (event.at > now || event.generation > run.current.number) {
            violate("S18", fmt::format("event {} is of the future", name_of(event.kind)));
        }
    });
    const bool is_same_run = before_.token == after.token;
    const bool has_closed = std::holds_alternative<rdzv::Closed>(run.phase) &&
                            !(is_same_run && before_.phase == after.phase);
    const bool has_started = after.digest != before_.digest && !after.digest.empty();
    // One that is adopted was started by another daemon.
    const bool is_told = starts == (has_started ? 1 : 0) || before_.phase == kAdopting;
    if (!is_first_step_ && (verdicts != (has_closed ? 1 : 0) || !is_told)) {
        violate("S18", fmt::format("the events tell {} verdicts and {} starts", verdicts, starts));
    }
}

void Checker::check_start_is_due(const rdzv::Run& run, Instant now) {
    const rdzv::Forming* forming = std::get_if<rdzv::Forming>(&run.phase);
    forming_since_ = forming != nullptr ? std::optional<Instant>(forming->since) : std::nullopt;
    const bool is_startable =
        forming != nullptr && run.nodes.suspects().empty() && !forming->not_before.has_value() &&
        !(run.hold.has_value() && run.hold->until > now) &&
        (run.nodes.preparing().empty() || !run.current.places.empty()) &&
        run.nodes.ready().size() >= static_cast<std::size_t>(run.settings.min_nodes);
    if (!is_startable) {
        startable_since_.reset();
    } else if (!startable_since_.has_value()) {
        startable_since_ = now;
    }
}

/// A daemon adopts the newest generation with living workers, or none, and numbers follow it.
void Checker::check_adoption(const rdzv::Run& run) {
    const bool has_adopted = !std::holds_alternative<rdzv::Forming>(run.phase);
    if (has_adopted || run.current.floor < newest_held_) {
        violate("L5", fmt::format("generation {} was adopted although a node holds {}",
                                  run.current.number.value(), newest_held_.value()));
    }
}

/// A stop that asks for a save gives the time for it.
void Checker::check_stop(const rdzv::Run& run, const rdzv::Stop& stop) {
    const bool is_drain =
        stop.cause == rdzv::StopCause::Grow || stop.cause == rdzv::StopCause::Leave;
    if (is_drain && stop.grace != run.settings.shutdown_timeout) {
        violate("L4", fmt::format("a drain with {} ms to save instead of {}", stop.grace.count(),
                                  run.settings.shutdown_timeout.count()));
    }
    const std::size_t size = run.current.places.size();
    // A node that comes back during the stop is told so again; newcomers may have gone by then.
    if (stop.cause == rdzv::StopCause::Grow && before_.phase == kRunning &&
        !is_size_between(run.settings, size, size + run.nodes.ready().size())) {
        violate("S15", fmt::format("{} nodes stop to grow, {} wait, and that makes no larger size",
                                   size, run.nodes.ready().size()));
    }
}

/// Deaths are declared by the rules of S6.
void Checker::check_losses(const rdzv::Run& run, const Snapshot& after, const rdzv::Input& input) {
    const bool is_decided = std::holds_alternative<rdzv::Closed>(run.phase) ||
                            std::holds_alternative<rdzv::Adopting>(run.phase);
    if (is_decided) {
        return;
    }
    if (cut_off_.has_value() && !run.nodes.contains(*cut_off_)) {
        violate("S6", fmt::format("node {} counts as dead because its connection was reset",
                                  cut_off_->value()));
    }
    const std::size_t lost = before_.nodes - std::min(before_.nodes, after.nodes);
    if (std::holds_alternative<rdzv::Tick>(input) && before_.phase != kStopping && lost >= 2 &&
        lost * 2 >= before_.nodes && !before_.is_in_doubt) {
        violate("S6", fmt::format("{} of {} nodes were declared dead at once, without self-doubt",
                                  lost, before_.nodes));
    }
}

void Checker::check_charges(const rdzv::Run& run, const Snapshot& after, const rdzv::Input& input) {
    const int restarts = after.restarts - before_.restarts;
    const int losses = after.losses - before_.losses;
    if (restarts < 0 || losses < 0 || restarts > 1) {
        violate("S9", fmt::format("one step charged {} restarts and {} losses", restarts, losses));
    }
    if (after.restarts > run.settings.max_restarts ||
        (run.settings.max_node_losses >= 0 && after.losses > run.settings.max_node_losses)) {
        violate("S9", "a budget is overdrawn");
    }
    const bool goes_on = after.digest == before_.digest && after.phase == before_.phase;
    if ((restarts > 0 || losses > 0) && goes_on) {
        violate("S9", "a charge without the end of a generation");
    }
    const bool is_new = after.digest != before_.digest;
    if (before_.phase == kRunning && (after.phase == kForming || is_new) && restarts + losses < 1 &&
        !is_restored_) {
        violate("S9", "a generation ended at once, and nothing was charged for it");
    }
    if (before_.phase == kRunning && after.phase == kStopping &&
        after.order == rdzv::StopCause::Failure && after.failures + after.lost_nodes == 0 &&
        !is_restored_) {
        violate("S5", "a generation was stopped without a cause");
    }
    if (before_.phase == kRunning && after.phase == kStopping && after.failures == 0) {
        check_missed(run, std::get<rdzv::Stopping>(run.phase));
    }
    const bool has_stopped = before_.phase == kStopping && (after.phase == kForming || is_new);
    if (!has_stopped) {
        return;
    }
    // A restored run may learn from its members that it had stopped, and never why.
    // All workers that hung may have ended before they were told to.
    const bool has_cause = before_.failures + before_.lost_nodes > 0 ||
                           (!is_restored_ && before_.order == rdzv::StopCause::Failure);
    if (is_for_failure(before_.order) && has_cause && restarts + losses < 1) {
        violate("S9", "a failure was charged to no budget");
    }
    if (restarts > 0 &&
        (!is_for_failure(before_.order) || before_.failures == 0 || before_.is_explained_by_loss)) {
        violate("S9", "a restart was charged that no failure of a worker explains");
    }
    // The step that ends a stop may lose more: one node, all whose leases end with it, or those
    // that joins replace which had waited for a restored run and are taken at once.
    const std::size_t gone = before_.nodes - std::min(before_.nodes, after.nodes);
    const std::size_t lost_now =
        is_proof_of_emptiness(input) ? 0 : std::max(gone, before_.parked + 1);
    if (losses < static_cast<int>(before_.lost_nodes) ||
        losses > static_cast<int>(before_.lost_nodes + lost_now)) {
        violate("S9", fmt::format("{} nodes were lost and {} charged", before_.lost_nodes, losses));
    }
}

/// A node all of whose ranks have finished is not missed, unless it serves the store.
void Checker::check_missed(const rdzv::Run& run, const rdzv::Stopping& stopping) {
    const auto found = truths_.find(run.current.digest);
    if (stopping.lost_nodes.size() != 1 || found == truths_.end()) {
        return;
    }
    const GenerationTruth& truth = found->second;
    const NodeId lost(stopping.lost_nodes.front());  // host names are node ids here
    const auto row = truth.group_ranks.find(lost);
    const auto reports = truth.finished_reports.find(lost);
    if (row != truth.group_ranks.end() && row->second != 0 &&
        reports != truth.finished_reports.end() &&
        reports->second == truth.places[row->second].slots) {
        violate("S9",
                fmt::format("node {} had finished, and its loss stopped the others", lost.value()));
    }
}

void Checker::daemon_died(Memory next) {
    is_restored_ = true;
    if (next != Memory::Whole) {
        // Numbers go on from the highest that is still held somewhere, and budgets with it.
        newest_told_.clear();
        restarts_told_.clear();
        held_until_.clear();
    }
    holds_given_.clear();
    for (auto& [digest, truth] : truths_) {
        truth.failed_at.clear();
        truth.hung_since.clear();
        truth.finished_reports.clear();
    }
    starts_.clear();
    unfit_told_.clear();
    startable_since_.reset();
    forming_since_.reset();
    is_first_step_ = true;
}

void Checker::forget_run() {
    starts_.clear();
    unfit_told_.clear();
    startable_since_.reset();
}

void Checker::run_was_given_up() {
    newest_told_.clear();
    restarts_told_.clear();
}

}  // namespace ddprun::sim
