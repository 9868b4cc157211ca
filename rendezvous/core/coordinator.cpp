#include "rendezvous/core/coordinator.hpp"

#include <chrono>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/overloaded.hpp"
#include "base/planted_bug.hpp"
#include "rendezvous/core/admission.hpp"
#include "rendezvous/core/adopting.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/forming.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/orders.hpp"
#include "rendezvous/core/preparing.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/record.hpp"
#include "rendezvous/core/restored.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/silence.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/core/stopping.hpp"
#include "rendezvous/core/strangers.hpp"
#include "rendezvous/wire/node_sizes.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

// ------------------------------------------------------------------------- phase × input, by rows
// README.md has the table. A row whose cells differ by phase is a function here, and names each
// phase; the transitions are in the file of the phase. The other rows are the same in every phase:
// Join is admission.cpp, the rest membership.cpp and quarantine.cpp.

template <typename Phase>
struct NothingInOne {
    void operator()(const Phase& /*phase*/) const {}
};

/// The empty cells of a row.
template <typename... Phases>
struct NothingIn : NothingInOne<Phases>... {
    using NothingInOne<Phases>::operator()...;
};

/// The member on `connection`, if it has local rank `rank` in the current generation; else null.
Node* member_with_rank(Run& run, ConnectionId connection, Generation generation, LocalRank rank) {
    Node* node = current_member(run, connection, generation);
    return node != nullptr && rank.value() >= 0 && rank.value() < node->info.slots ? node : nullptr;
}

void worker_finished(Step& step, ConnectionId connection, const WorkerFinished& message) {
    Node* node = member_with_rank(step.run, connection, message.generation, message.local_rank);
    if (node == nullptr || node->failed.contains(message.local_rank)) {
        return;
    }
    const bool is_news = node->finished.insert(message.local_rank).second;
    if (is_news) {
        publish_finished(step, *node, message.local_rank);
    }
    std::visit(Overloaded{
                   [&](Running& running) { rank_finished(step, running, *node, is_news); },
                   [&](Stopping& stopping) { rank_finished(step, stopping, *node); },
                   NothingIn<Forming, Closed, Adopting, Restored>(),
               },
               step.run.phase);
}

void worker_failed(Step& step, ConnectionId connection, const WorkerFailed& message) {
    Node* node = member_with_rank(step.run, connection, message.generation, message.local_rank);
    if (node == nullptr || node->finished.contains(message.local_rank)) {
        return;
    }
    std::visit(Overloaded{
                   [&](const Running& running) { rank_failed(step, running, *node, message); },
                   [&](Stopping& stopping) { rank_failed(step, stopping, *node, message); },
                   NothingIn<Forming, Closed, Adopting, Restored>(),
               },
               step.run.phase);
}

void quiet(Step& step, ConnectionId connection, const Quiet& message) {
    Node* node = current_member(step.run, connection, message.generation);
    if (node == nullptr) {
        return;
    }
    std::visit(
        Overloaded{
            [&](Running& running) { hear_quiet(step, running, *node, message); },
            NothingIn<Forming, Stopping, Closed, Adopting, Restored>(),
        },
        step.run.phase);
}

void reached(Step& step, ConnectionId connection, const Reached& message) {
    const Node* node = current_member(step.run, connection, message.generation);
    if (node == nullptr) {
        return;
    }
    const auto hear = [&] {
        hear_reached(step, *node, message);
        if (message.saves) {
            hear_saves(step, *node, *message.saves);
        }
    };
    std::visit(Overloaded{
                   [&](Running& running) {
                       hear();
                       if (message.hang) {
                           hear_hang(step, running, *node, *message.hang);
                       }
                   },
                   [&](const Stopping&) { hear(); },
                   NothingIn<Forming, Closed, Adopting, Restored>(),
               },
               step.run.phase);
}

void stopped(Step& step, ConnectionId connection, const Stopped& message) {
    Node* node = step.run.nodes.speaking_on(connection);
    if (node != nullptr && node->standing() == Standing::Unready) {
        fenced_node_emptied(step, *node, message);
        return;
    }
    if (node != nullptr && node->standing() == Standing::Preparing) {
        prepared(step, *node, message);
        return;
    }
    if (node == nullptr || !node->is_member() || message.generation != step.run.current.number) {
        return;
    }
    std::visit(Overloaded{
                   [&](const Running& running) { member_emptied(step, running, *node, message); },
                   [&](Stopping& stopping) { member_emptied(step, stopping, *node, message); },
                   NothingIn<Forming, Closed, Adopting, Restored>(),
               },
               step.run.phase);
}

void leave(Step& step, ConnectionId connection, const Leave& message) {
    Node* node = step.run.nodes.speaking_on(connection);
    if (node == nullptr || is_closed(step.run)) {
        return;
    }
    told_to_leave(step, *node, message);
    if (node->standing() == Standing::Ready || node->standing() == Standing::Preparing) {
        release(step, NodeId(node->info.node));
    } else if (node->is_member()) {
        std::visit(
            Overloaded{
                [&](const Running& running) { drain_for_leaver(step, running, *node, message); },
                NothingIn<Forming, Stopping, Closed, Adopting, Restored>(),
            },
            step.run.phase);
    }
}

void held_up(Step& step, Duration by) {
    if (DDP_RULE(!step.options.has_leases, HeldUpIgnored, true)) {
        return;
    }
    if (Restored* restored = std::get_if<Restored>(&step.run.phase)) {
        prolong(*restored, by);
        return;  // no node is here that could be silent
    }
    if (Adopting* adopting = std::get_if<Adopting>(&step.run.phase)) {
        prolong(*adopting, by);
    }
    publish(step, EventKind::HeldUp,
            {{"ms", std::chrono::duration_cast<Milliseconds>(by).count()}});
    doubt_silence(step, by);
}

/// Records can be relied on again, or no longer, or the reason has changed: every node here should
/// know it.
void judge_durability(Step& step, const std::string& fault) {
    Run& run = step.run;
    if (run.not_durable == fault) {
        return;
    }
    run.not_durable = fault;
    const std::string text =
        fault.empty() ? "the rendezvous's journal works again: the job is durable"
                      : fmt::format("the job goes on but is no longer durable: {}", fault);
    note(step, text);
    tell_all(step, text);
    publish(step, EventKind::Durability, {{"text", fault}});
}

/// Deadlines in the order in which they may depend on each other.
void judge_deadlines(Step& step) {
    Run& run = step.run;
    if (run.hold && run.hold->until <= step.now) {
        end_hold(step);
    }
    judge_leases(step);
    judge_departures(step);
    if (const Stopping* stopping = std::get_if<Stopping>(&run.phase)) {
        lose_late_members(step, *stopping);
    }
    if (const Forming* forming = std::get_if<Forming>(&run.phase)) {
        give_up_forming(step, *forming);
    }
}

void receive(Step& step, ConnectionId connection, const AgentMessage& message) {
    std::visit(Overloaded{
                   [&](const Join& m) { join(step, connection, m); },
                   [&](const WorkerFinished& m) { worker_finished(step, connection, m); },
                   [&](const WorkerFailed& m) { worker_failed(step, connection, m); },
                   [&](const Quiet& m) { quiet(step, connection, m); },
                   [&](const Reached& m) { reached(step, connection, m); },
                   [](const Progress&) {},     // of who watches: Server
                   [](const WorkersRead&) {},  // of who reads: Server
                   [&](const Stopped& m) { stopped(step, connection, m); },
                   [&](const Leave& m) { leave(step, connection, m); },
                   [&](const Unkillable& m) { unkillable(step, connection, m); },
                   [&](const Goodbye& m) { goodbye(step, connection, m); },
                   [](const Unfit&) {},  // Coordinator::take_unfit()
                   [&](const Beat& m) { beat(step, connection, m); },
               },
               message);
}

void take(Step& step, const Input& input) {
    std::visit(Overloaded{
                   [&](const Received& in) { receive(step, in.connection, in.message); },
                   [&](const ConnectionEnded& in) { connection_ended(step, in); },
                   [&](const HeldUp& in) { held_up(step, in.by); },
                   [&](const Tick&) { judge_deadlines(step); },
                   [&](const Durability& in) { judge_durability(step, in.fault); },
                   [&](const OrderGiven& in) { take_order(step, in); },
                   [&](const StrangerRefused& in) { hear_of_stranger(step, in); },
               },
               input);
}

/// After any input: a generation may start, or one may have to stop, now.
void judge_phase(Step& step) {
    Phase& phase = step.run.phase;
    if (Forming* forming = std::get_if<Forming>(&phase)) {
        form_if_possible(step, *forming);
    }
    if (const Running* running = std::get_if<Running>(&phase)) {
        grow_if_wanted(step, *running);
    }
    if (Running* running = std::get_if<Running>(&phase)) {
        tell_hang(step, *running);
        stop_if_hung(step, *running);
    }
}

/// When the phase itself wants to be judged, whatever comes.
std::optional<Instant> deadline_of(const Run& run, Instant now) {
    using Deadline = std::optional<Instant>;
    return std::visit(
        Overloaded{
            [&](const Forming& forming) { return deadline_of(run, forming, now); },
            [&](const Running& running) { return deadline_of(run, running, now); },
            [&](const Stopping& stopping) { return Deadline(stopping.give_up_at); },
            [&](const Closed&) { return Deadline(); },
            [&](const Adopting& adopting) { return Deadline(deadline_of(adopting, now)); },
            [&](const Restored& restored) { return Deadline(deadline_of(run, restored)); },
        },
        run.phase);
}

// ------------------------------------------------------------------------------------------------

/// Checks the invariants that hold between two steps (S1, S2, S9, S11).
void check_invariants(const Run& run, const Limits& limits) {
    DDP_CHECK(run.budgets.restarts_used <= run.settings.max_restarts, run.budgets.restarts_used);
    DDP_CHECK(run.nodes.size() <= limits.nodes_max, run.nodes.size());
    if (const Stopping* stopping = std::get_if<Stopping>(&run.phase)) {
        DDP_CHECK(!stopping->pending.empty());
    }
    if (const Running* running = std::get_if<Running>(&run.phase)) {
        DDP_CHECK(!running->unfinished.empty());
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
    if (!run_ || !is_job_prepared(*run_) || std::holds_alternative<Adopting>(run_->phase)) {
        return std::nullopt;
    }
    return record_of(job_, *run_, now);
}

/// Before `input` is taken: forgets a restored run that no longer needs to be waited for.
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

/// All of the run ended with the daemon, or continues elsewhere: nodes that came since begin anew.
void Coordinator::forget_restored(Effects& out) {
    out.add(
        Trace{fmt::format("nobody of the run that was in the journal came back: it is "
                          "forgotten at generation {}",
                          run_->current.number.value())});
    const std::map<ConnectionId, Join> parked = run_->parked.take_all();
    run_.reset();
    for (const auto& [connection, join] : parked) {
        step(now_, Received{connection, join}, out);
    }
}

/// An unfit node takes no part in a run and cannot open one. Its message is kept for a run that can
/// judge which member it concerns, for `quarantine_cooldown` at most.
void Coordinator::take_unfit(ConnectionId connection, const Unfit& message, Effects& out) {
    if (run_ && (run_->nodes.by_connection().contains(connection) ||
                 run_->departing.contains(connection) || run_->parked.contains(connection))) {
        return;  // it has joined, and says Goodbye
    }
    if (unfit_.size() < options_.limits.nodes_max || unfit_.contains(message.node)) {
        unfit_[message.node] = {.message = message,
                                .until = now_ + options_.limits.quarantine_cooldown};
    }
    refuse(out, connection, fmt::format("node {} is not fit ({})", message.hostname, message.why),
           kExitUnfit);
}

std::vector<Unfit> Coordinator::take_due_unfit() {
    std::vector<Unfit> due;
    if (run_ && !is_closed(*run_) && !std::holds_alternative<Adopting>(run_->phase) &&
        !std::holds_alternative<Restored>(run_->phase)) {
        for (auto& [id, pending] : std::exchange(unfit_, {})) {
            due.push_back(std::move(pending.message));
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
            publish(opening, EventKind::Begun,
                    {{"job", job_.value()}, {"nodes", nnodes_of(run_->settings)}});
            enter_forming(opening, "");
            judge_unfit(opening, take_due_unfit());  // before the joiner, which may be one of them
        }
    }
    if (const Unfit* unfit =
            received != nullptr ? std::get_if<Unfit>(&received->message) : nullptr) {
        take_unfit(received->connection, *unfit, out);
    }
    if (!run_) {
        if (const OrderGiven* given = std::get_if<OrderGiven>(&input)) {
            refuse_order(out, *given, OrderFault::Unknown,
                         fmt::format("nobody has joined job {}", job_.value()));
        }
        return;  // nothing was ever joined: no connection of ours, no deadline
    }
    Step step{job_, options_, rng_, now, *run_, out};
    take(step, input);
    if (const Adopting* adopting = std::get_if<Adopting>(&run_->phase)) {
        adopt_if_possible(step, *adopting);
    }
    judge_unfit(step, take_due_unfit());
    choose_preparer(step);
    judge_phase(step);
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
    for (const auto& [id, pending] : unfit_) {
        consider(pending.until);
    }
    if (!run_) {
        return deadline;
    }
    consider(deadline_of(*run_, now_));
    consider(leases_deadline(*run_, options_.limits, now_));
    consider(run_->departing.next());
    consider(run_->explain_at);
    if (run_->hold) {
        consider(run_->hold->until);
    }
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
