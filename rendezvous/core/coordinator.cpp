#include "rendezvous/core/coordinator.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/overloaded.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/core/step.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

/// A stranger may be told an old verdict: the run was decided, and lately.
bool is_answered_by_verdict(const Run& run, const Closed& closed, const Join& join, Instant now,
                            Milliseconds kept) {
    if (!join.run_token.empty() && join.run_token == run.token) {
        return true;
    }
    const bool is_decided =
        closed.verdict.kind == VerdictKind::Succeeded || closed.verdict.kind == VerdictKind::Failed;
    return is_decided && now - closed.at < kept && !run.departed.contains(join.node);
}

void receive(Step& step, ConnectionId connection, const AgentMessage& message) {
    std::visit(Overloaded{
                   [&](const Join& m) { join(step, connection, m); },
                   [&](const WorkerFinished& m) { worker_finished(step, connection, m); },
                   [&](const WorkerFailed& m) { worker_failed(step, connection, m); },
                   [&](const Quiet& m) { quiet(step, connection, m); },
                   [&](const Stopped& m) { stopped(step, connection, m); },
                   [&](const Leave& m) { leave(step, connection, m); },
                   [&](const Unkillable& m) { unkillable(step, connection, m); },
                   [&](const Goodbye& m) { goodbye(step, connection, m); },
                   [](const Unfit&) {},  // Coordinator::take_unfit()
                   [&](const Beat& m) { beat(step, connection, m); },
               },
               message);
}

/// Deadlines in the order in which they may depend on each other.
void judge_deadlines(Step& step) {
    judge_leases(step);
    judge_departures(step);
    judge_stopping(step);
    judge_forming(step);
}

/// What must hold between two steps (S1, S2, S9, S11).
void check_invariants(const Run& run, const Limits& limits) {
    DDP_CHECK(run.restarts_used <= run.settings.max_restarts, run.restarts_used);
    DDP_CHECK(run.nodes.size() <= limits.nodes_max, run.nodes.size());
    if (const Stopping* stopping = std::get_if<Stopping>(&run.phase)) {
        DDP_CHECK(!stopping->pending.empty());
    }
    if (const Running* running = std::get_if<Running>(&run.phase)) {
        DDP_CHECK(!running->unfinished.empty());
    }
}

/// Whether records can be relied on has changed: everybody who works here should know.
void judge_durability(Step& step, const std::string& fault) {
    Run& run = step.run;
    if (run.not_durable == fault) {
        return;
    }
    const bool was_durable = run.not_durable.empty();
    run.not_durable = fault;
    if (fault.empty() || was_durable) {
        const std::string text =
            fault.empty() ? "the rendezvous's journal works again: the job is durable"
                          : fmt::format("the job goes on but is no longer durable: {}", fault);
        note(step, text);
        for (const auto& [id, node] : run.nodes) {
            send(step, node, Notice{text});
        }
    }
}

}  // namespace

Coordinator::Coordinator(JobId job, CoordinatorOptions options, Rng rng)
    : job_(std::move(job)), options_(options), rng_(rng) {}

Coordinator::~Coordinator() = default;

Result<void> Coordinator::restore(Instant now, const RunRecord& record) {
    DDP_CHECK(run_ == nullptr && options_.has_leases);
    if (const std::string flaw = flaw_of(record); !flaw.empty()) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("the record of job {} makes no sense: {}", job_.value(), flaw)};
    }
    now_ = now;
    run_ = run_of(record, options_.limits, now);
    return {};
}

std::optional<RunRecord> Coordinator::record(Instant now) const {
    if (!run_ || run_->generation == Generation() ||
        std::holds_alternative<Adopting>(run_->phase)) {
        return std::nullopt;
    }
    return record_of(job_, *run_, now);
}

/// Before `input` is taken: a run that nobody needs waited for any longer is forgotten.
void Coordinator::give_up_restored(const Input& input, Effects& out) {
    if (run_ == nullptr || !std::holds_alternative<Restored>(run_->phase) ||
        std::holds_alternative<HeldUp>(input)) {
        return;  // none, or how long it was waited for is about to be corrected
    }
    const Restored& restored = std::get<Restored>(run_->phase);
    if (const ConnectionEnded* ended = std::get_if<ConnectionEnded>(&input)) {
        run_->parked.erase(ended->connection);
    }
    const Received* received = std::get_if<Received>(&input);
    const Join* joining = received != nullptr ? std::get_if<Join>(&received->message) : nullptr;
    if (joining != nullptr && joining->run_token == run_->token) {
        return;
    }
    const bool is_wanted = joining != nullptr && now_ >= restored.strangers_wait_until &&
                           fault_of(*joining, options_.limits).empty();
    if (is_wanted || is_given_up(*run_, restored, now_)) {
        forget_restored(out);
    }
}

/// Everything of it ended with the daemon, or goes on elsewhere: whoever came since begins anew.
void Coordinator::forget_restored(Effects& out) {
    out.add(
        Trace{fmt::format("nobody of the run that was in the journal came back: it is "
                          "forgotten at generation {}",
                          run_->generation.value())});
    const std::map<ConnectionId, Join> parked = std::move(run_->parked);
    run_.reset();
    for (const auto& [connection, join] : parked) {
        step(now_, Received{connection, join}, out);
    }
}

/// Whoever is not fit has no part in a run, not even by opening it. What it says waits for one that
/// can tell whom it concerns.
void Coordinator::take_unfit(ConnectionId connection, const Unfit& message, Effects& out) {
    if (run_ && (run_->by_connection.contains(connection) || run_->departing.contains(connection) ||
                 run_->parked.contains(connection))) {
        return;  // it has joined, and says Goodbye
    }
    if (unfit_.size() < options_.limits.nodes_max || unfit_.contains(message.node)) {
        unfit_[message.node] = {.what = message,
                                .until = now_ + options_.limits.quarantine_cooldown};
    }
    refuse(out, connection, fmt::format("node {} is not fit ({})", message.hostname, message.why),
           kExitUnfit);
}

std::vector<Unfit> Coordinator::take_due_unfit() {
    std::vector<Unfit> due;
    if (run_ && !is_closed(*run_) && !std::holds_alternative<Adopting>(run_->phase) &&
        !std::holds_alternative<Restored>(run_->phase)) {
        for (auto& [id, told] : std::exchange(unfit_, {})) {
            due.push_back(std::move(told.what));
        }
    }
    return due;
}

void Coordinator::step(Instant now, const Input& input, Effects& out) {
    DDP_CHECK(now >= now_);
    now_ = now;
    std::erase_if(unfit_, [now](const auto& one) { return one.second.until <= now; });
    give_up_restored(input, out);
    const Received* received = std::get_if<Received>(&input);
    const Join* joining = received != nullptr ? std::get_if<Join>(&received->message) : nullptr;
    if (joining != nullptr) {
        const Closed* closed = run_ ? std::get_if<Closed>(&run_->phase) : nullptr;
        const bool opens =
            !run_ || (closed != nullptr && !is_answered_by_verdict(*run_, *closed, *joining, now,
                                                                   options_.limits.verdict_kept));
        if (opens) {
            if (const std::string fault = fault_of(*joining, options_.limits); !fault.empty()) {
                out.add(Trace{fault});
                refuse(out, received->connection, fault, kExitUsage);
                return;
            }
            const bool is_first = run_ == nullptr;
            run_ = std::make_unique<Run>();
            run_->may_be_older = is_first;
            run_->token = fmt::format("{:016x}", rng_.next());
            run_->settings = joining->settings;
            run_->opened_at = now;
            Step opening{job_, options_, rng_, now, *run_, out};
            enter_forming(opening, "");
            judge_unfit(opening, take_due_unfit());  // before the joiner, which may be one of them
        }
    }
    if (const Unfit* unfit =
            received != nullptr ? std::get_if<Unfit>(&received->message) : nullptr) {
        take_unfit(received->connection, *unfit, out);
    }
    if (!run_) {
        return;  // nothing was ever joined: no connection of ours, no deadline
    }
    Step step{job_, options_, rng_, now, *run_, out};
    std::visit(Overloaded{
                   [&](const Received& in) { receive(step, in.connection, in.message); },
                   [&](const ConnectionEnded& in) { connection_ended(step, in); },
                   [&](const HeldUp& in) { held_up(step, in.by); },
                   [&](const Tick&) { judge_deadlines(step); },
                   [&](const Durability& in) { judge_durability(step, in.fault); },
               },
               input);
    adopt_if_possible(step);
    judge_unfit(step, take_due_unfit());
    form_if_possible(step);
    grow_if_wanted(step);
    judge_hang(step);
    explain_waits(step);
    check_invariants(*run_, options_.limits);
}

std::optional<Instant> Coordinator::next_deadline() const {
    std::optional<Instant> deadline;
    const auto consider = [&deadline](std::optional<Instant> candidate) {
        if (candidate && (!deadline || *candidate < *deadline)) {
            deadline = candidate;
        }
    };
    for (const auto& [id, told] : unfit_) {
        consider(told.until);
    }
    if (!run_) {
        return deadline;
    }
    if (const Restored* restored = std::get_if<Restored>(&run_->phase)) {
        consider(restored_deadline(*run_, *restored));
    }
    consider(leases_deadline(*run_, options_.limits, now_));
    for (const auto& [connection, departing] : run_->departing) {
        consider(departing.until);
    }
    if (const Stopping* stopping = std::get_if<Stopping>(&run_->phase)) {
        consider(stopping->give_up_at);
    }
    if (const Running* running = std::get_if<Running>(&run_->phase)) {
        consider(running->hangs_at);
    }
    consider(run_->explain_at);
    if (const Adopting* adopting = std::get_if<Adopting>(&run_->phase)) {
        consider(adopting_deadline(*adopting, now_));
    }
    consider(forming_deadline(*run_, now_));
    return deadline;
}

std::string Coordinator::explain() const {
    return run_ ? explain_run(*run_, now_) : std::string();
}

bool Coordinator::is_done() const {
    return run_ && is_closed(*run_) && run_->nodes.empty() && run_->departing.empty();
}

bool Coordinator::is_forgettable(Instant now) const {
    const Closed* closed = run_ ? std::get_if<Closed>(&run_->phase) : nullptr;
    return is_done() && now - closed->at >= options_.limits.verdict_kept && unfit_.empty();
}

const Run* Coordinator::run() const {
    return run_.get();
}

}  // namespace ddprun::rdzv
