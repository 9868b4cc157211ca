#include "rendezvous/host/daemon_host.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/codec.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

/// The join on that connection was accepted, or is kept until it is known which run goes on.
bool is_in(const Run* run, ConnectionId connection) {
    return run != nullptr && !std::holds_alternative<Closed>(run->phase) &&
           (run->nodes.by_connection().contains(connection) || run->parked.contains(connection));
}

}  // namespace

DaemonHost::DaemonHost(DaemonHostOptions options, Rng rng)
    : options_(std::move(options)), rng_(rng), port_(options_.serves_tcpstore) {
    job_options_.coordinator = options_.coordinator;
    job_options_.watcher = options_.watcher;
    if (options_.is_one_of_several) {
        lobby_.emplace(options_.coordinator.limits);
    }
}

// ------------------------------------------------------------------------------ which one decides

void DaemonHost::begin(Instant now, Keeping keeping, const std::map<JobId, std::string>& records,
                       DaemonEffects& out) {
    job_options_.keeping = keeping;
    restore(now, records, out);
    if (!has_had_any_) {
        await_agents(now, out);
    }
}

void DaemonHost::lead(Instant now, const std::map<JobId, std::string>& records,
                      std::function<bool(Instant)> may_decide, DaemonEffects& out) {
    std::map<ConnectionId, Join> waited;
    if (lobby_) {
        waited = lobby_->take_all();
        lobby_.reset();
    }
    clear(out);
    job_options_.keeping = Keeping::Strictly;
    job_options_.may_decide = std::move(may_decide);
    restore(now, records, out);
    for (const auto& [connection, message] : waited) {
        join(now, connection, message, out);
    }
}

void DaemonHost::follow(const std::string& leader, DaemonEffects& out) {
    clear(out);
    if (!lobby_) {
        lobby_.emplace(options_.coordinator.limits);
    }
    for (const auto& [connection, job] : std::exchange(members_, {})) {
        out.emplace_back(DropConnection{connection});
    }
    for (const ConnectionId connection : lobby_->follow(leader)) {
        send_to_leader(connection, out);
    }
}

void DaemonHost::stop(DaemonEffects& out) {
    clear(out);
    awaits_agents_ = false;
}

void DaemonHost::clear(DaemonEffects& out) {
    while (!jobs_.empty()) {
        remove(JobId(jobs_.begin()->first), out);
    }
    if (port_.release() == PortClaim::Change::Close) {
        out.emplace_back(CloseStore{});
    }
}

std::optional<std::string> DaemonHost::leader() const {
    return lobby_ ? std::optional(lobby_->leader()) : std::nullopt;
}

void DaemonHost::restore(Instant now, const std::map<JobId, std::string>& records,
                         DaemonEffects& out) {
    has_had_any_ = false;
    for (const auto& [id, text] : records) {
        restore(now, id, text, out);
    }
}

void DaemonHost::restore(Instant now, const JobId& id, const std::string& text,
                         DaemonEffects& out) {
    const Result<RunRecord> record = decode<RunRecord>(text, options_.coordinator.limits);
    if (!record || record->job != id) {
        out.emplace_back(
            Trace{fmt::format("the journal's record of job {} cannot be read: {}", id.value(),
                              record ? "it is of another job" : record.error().what)});
        return;
    }
    Job& job = add(id);
    has_had_any_ = true;
    HostEffects wanted;
    const Result<void> restored = job.host.restore(now, *record, wanted);
    if (!restored) {
        out.emplace_back(Trace{restored.error().what});
        remove(id, out);
        return;
    }
    out.emplace_back(
        Trace{fmt::format("job {} goes on from the journal: generation {}, {} nodes", id.value(),
                          record->generation.value(), record->nodes.size())});
    carry_over(id, job, std::move(wanted), out);
}

void DaemonHost::await_agents(Instant now, DaemonEffects& out) {
    if (options_.exits_when_idle) {
        awaits_agents_ = true;
        out.emplace_back(SetIdleTimer{now + options_.idle_start_timeout});
    }
}

bool DaemonHost::are_all_done() const {
    return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) {
        const Coordinator& coordinator = job.second->host.coordinator();
        return coordinator.run() == nullptr || coordinator.is_done();
    });
}

// ----------------------------------------------------------------------------------- connections

void DaemonHost::receives(Instant now, ConnectionId connection, const AgentMessage& message,
                          DaemonEffects& out) {
    if (const Join* const joining = std::get_if<Join>(&message)) {
        join(now, connection, *joining, out);
        return;
    }
    const auto member = members_.find(connection);
    const bool is_member = member != members_.end();
    if (const Unfit* const unfit = std::get_if<Unfit>(&message); unfit != nullptr && !is_member) {
        hear_unfit(now, connection, *unfit, out);
    } else if (!is_member) {
        if (!lobby_ || !lobby_->is_waiting(connection)) {
            out.emplace_back(ResetConnection{connection, "it spoke before it joined"});
        }
    } else if (!step(now, JobId(member->second), Received{connection, message}, out)) {
        out.emplace_back(ResetConnection{connection, "its run is long closed"});
    }
}

void DaemonHost::join(Instant now, ConnectionId connection, const Join& message,
                      DaemonEffects& out) {
    if (lobby_) {
        if (lobby_->arrives(connection, message) == Lobby::Answer::SendOn) {
            send_to_leader(connection, out);
        }
        return;
    }
    const bool wants_port = message.store.port == 0;
    if (const auto why = wants_port ? port_.refusal(message.job) : std::nullopt) {
        turn_away(connection, Refused{.text = *why, .exit_code = kExitUsage}, out);
        return;
    }
    if (!open_job(now, message.job, out)) {
        const std::string why =
            fmt::format("the rendezvous serves {} jobs already, its limit; use another one",
                        options_.coordinator.limits.jobs_max);
        turn_away(connection, Refused{.text = why, .exit_code = kExitInternal}, out);
        return;
    }
    members_.insert_or_assign(connection, message.job);
    has_had_any_ = true;
    awaits_agents_ = false;
    static_cast<void>(step(now, message.job, Received{connection, message}, out));
    if (wants_port && is_in(run(message.job), connection)) {
        port_.claim(message.job);
    }
}

void DaemonHost::hear_unfit(Instant now, ConnectionId connection, const Unfit& message,
                            DaemonEffects& out) {
    if (lobby_) {
        // Else it asks again, here or elsewhere, as long as it has patience.
        if (lobby_->arrives(message) == Lobby::Answer::SendOn) {
            send_to_leader(connection, out);
        }
    } else if (open_job(now, message.job, out)) {
        members_.insert_or_assign(connection, message.job);
        static_cast<void>(step(now, message.job, Received{connection, message}, out));
    } else {
        turn_away(connection, Refused{.text = message.why, .exit_code = kExitUnfit}, out);
    }
}

void DaemonHost::send_to_leader(ConnectionId connection, DaemonEffects& out) const {
    out.emplace_back(Send{connection, Redirect{lobby_->leader()}});
    out.emplace_back(CloseConnection{connection, lobby_->leader() + " leads"});
}

void DaemonHost::turn_away(ConnectionId connection, const Refused& refused, DaemonEffects& out) {
    out.emplace_back(Send{connection, refused});
    out.emplace_back(CloseConnection{connection, refused.text});
}

void DaemonHost::ended(Instant now, ConnectionId connection, PeerEnd how, DaemonEffects& out) {
    if (lobby_) {
        lobby_->ended(connection);
    }
    if (const JobId* const member = job_of(connection)) {
        // A run that is forgotten already does not care.
        const ConnectionEnded end{connection, how == PeerEnd::ProcessGone};
        static_cast<void>(step(now, JobId(*member), end, out));
        members_.erase(connection);
    } else if (how == PeerEnd::Lost) {
        await_agents(now, out);
    }
}

const JobId* DaemonHost::job_of(ConnectionId connection) const {
    const auto found = members_.find(connection);
    return found == members_.end() ? nullptr : &found->second;
}

std::vector<ConnectionId> DaemonHost::connections(const JobId& job) const {
    std::vector<ConnectionId> found;
    for (const auto& [connection, its] : members_) {
        if (its == job) {
            found.push_back(connection);
        }
    }
    return found;
}

bool DaemonHost::has_joined(ConnectionId connection) const {
    return members_.contains(connection) || (lobby_ && lobby_->is_waiting(connection));
}

// ------------------------------------------------------------------------------------------ jobs

const JobHost* DaemonHost::host(const JobId& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? nullptr : &found->second->host;
}

const Run* DaemonHost::run(const JobId& job) const {
    const JobHost* const its = host(job);
    return its == nullptr ? nullptr : its->coordinator().run();
}

void DaemonHost::visit(const std::function<void(const JobId&, const Coordinator&)>& look) const {
    for (const auto& [id, job] : jobs_) {
        look(id, job->host.coordinator());
    }
}

DaemonHost::Job& DaemonHost::add(const JobId& id) {
    auto job = std::make_unique<Job>(id, job_options_, Rng(rng_.next()), ++last_life_);
    return *(jobs_[id] = std::move(job));
}

DaemonHost::Job* DaemonHost::find(const JobLife& life) {
    const auto found = jobs_.find(life.job);
    return found != jobs_.end() && found->second->life == life.number ? found->second.get()
                                                                      : nullptr;
}

bool DaemonHost::open_job(Instant now, const JobId& id, DaemonEffects& out) {
    if (jobs_.contains(id)) {
        return true;
    }
    const std::size_t most = options_.coordinator.limits.jobs_max;
    forget_closed(now, out);
    if (jobs_.size() >= most) {
        forget_one_without_run(out);
    }
    if (jobs_.size() >= most) {
        return false;
    }
    add(id);
    return true;
}

bool DaemonHost::step(Instant now, const JobId& id, const Input& input, DaemonEffects& out) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) {
        return false;
    }
    HostEffects wanted;
    found->second->host.step(now, input, wanted);
    carry_over(id, *found->second, std::move(wanted), out);
    // A join that was refused opens no run: nothing of it is kept.
    if (found->second->host.coordinator().is_empty()) {
        forget(id, out);
    }
    return true;
}

void DaemonHost::carry_over(const JobId& id, Job& job, HostEffects&& wanted, DaemonEffects& out) {
    out.emplace_back(JobStepped{id});
    follow_on_port(id, job.host.coordinator().run(), out);
    for (Effect& effect : wanted.now) {
        carry_over(id, std::move(effect), out);
    }
    for (WriteRecord& record : wanted.writes) {
        out.emplace_back(WriteJobRecord{{id, job.life}, std::move(record)});
    }
    if (wanted.timer) {
        out.emplace_back(SetJobTimer{{id, job.life}, *wanted.timer});
    }
}

void DaemonHost::follow_on_port(const JobId& id, const Run* run, DaemonEffects& out) {
    const PortClaim::Change change = port_.follow(id, run);
    if (change == PortClaim::Change::Close) {
        out.emplace_back(CloseStore{});
    } else if (change == PortClaim::Change::Serve) {
        ServeStore store{.admitted = run->current.admitted, .clients = 0};
        for (const Place& place : run->current.places) {
            store.clients += static_cast<std::size_t>(place.slots);
        }
        out.emplace_back(std::move(store));
    }
}

void DaemonHost::carry_over(const JobId& id, Effect&& effect, DaemonEffects& out) {
    if (auto* const send = std::get_if<Send>(&effect)) {
        out.emplace_back(std::move(*send));
    } else if (auto* const close = std::get_if<CloseConnection>(&effect)) {
        members_.erase(close->connection);
        out.emplace_back(std::move(*close));
    } else if (const auto* const trace = std::get_if<Trace>(&effect)) {
        out.emplace_back(Trace{fmt::format("{}: {}", id.value(), trace->text)});
    } else if (auto* const published = std::get_if<Publish>(&effect)) {
        out.emplace_back(PublishToWatchers{id, std::move(published->event)});
    } else if (auto* const answered = std::get_if<Ordered>(&effect);
               answered != nullptr && orders_.erase(answered->number) > 0) {
        out.emplace_back(AnswerOrder{id, answered->number, std::move(answered->reply)});
    }
}

// ------------------------------------------------------------------------------------------ time

void DaemonHost::timer_fired(Instant now, const JobLife& life, DaemonEffects& out) {
    Job* const job = find(life);
    if (job == nullptr) {
        return;
    }
    HostEffects wanted;
    const bool is_due = job->host.wakes(now, wanted);
    carry_over(life.job, *job, std::move(wanted), out);
    if (is_due) {
        DDP_RULE(out.push_back(ReadArrived{life}), JudgedUnheard,
                 nothing_more_arrived(now, life, out));
    } else {
        forget_closed(now, out);
    }
}

void DaemonHost::nothing_more_arrived(Instant now, const JobLife& life, DaemonEffects& out) {
    // Without it, what was read was the end of the job.
    if (Job* const job = find(life)) {
        HostEffects wanted;
        job->host.judge(now, wanted);
        carry_over(life.job, *job, std::move(wanted), out);
        if (job->host.coordinator().is_empty()) {
            forget(life.job, out);  // no node came, or came back to it
        }
    }
    forget_closed(now, out);
}

void DaemonHost::written(Instant now, const JobLife& life, std::uint64_t number,
                         const std::string& fault, DaemonEffects& out) {
    if (Job* const job = find(life)) {
        HostEffects wanted;
        job->host.written(now, number, fault, wanted);
        carry_over(life.job, *job, std::move(wanted), out);
    }
}

// ---------------------------------------------------------------------------------------- orders

void DaemonHost::order(Instant now, std::uint64_t number, const OperatorOrder& order,
                       const std::string& from, DaemonEffects& out) {
    const auto refuse = [&](OrderFault fault, std::string text) {
        out.emplace_back(
            AnswerOrder{order.job, number, {.fault = fault, .event = 0, .text = std::move(text)}});
    };
    if (!jobs_.contains(order.job)) {
        std::vector<std::string> names;
        for (const auto& [id, job] : jobs_) {
            names.push_back(id.value());
        }
        refuse(OrderFault::Unknown,
               fmt::format("there is no job {} here; there {}", order.job.value(),
                           names.empty() ? "is none" : "are " + list_of(names)));
        return;
    }
    if (orders_.size() >= options_.coordinator.limits.orders_max) {
        refuse(OrderFault::Conflict,
               fmt::format("{} orders wait for the journal already: ask again", orders_.size()));
        return;
    }
    orders_.emplace(number, order.job);
    static_cast<void>(
        step(now, order.job, OrderGiven{.number = number, .order = order, .from = from}, out));
}

void DaemonHost::stranger_refused(Instant now, const JobId& job, const StrangerRefused& stranger,
                                  DaemonEffects& out) {
    static_cast<void>(step(now, job, stranger, out));
}

/// The next daemon that decides may not know of these orders.
void DaemonHost::refuse_orders_of(const JobId& id, DaemonEffects& out) {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, job] : orders_) {
        if (job == id) {
            numbers.push_back(number);
        }
    }
    for (const std::uint64_t number : numbers) {
        orders_.erase(number);
        out.emplace_back(AnswerOrder{
            id,
            number,
            {.fault = OrderFault::Conflict,
             .event = 0,
             .text = fmt::format("this rendezvous decides about job {} no more: look with ddpctl "
                                 "status whether the order was taken",
                                 id.value())}});
    }
}

// ------------------------------------------------------------------------------------ forgetting

void DaemonHost::forget(const JobId& id, DaemonEffects& out) {
    if (job_options_.keeping != Keeping::Nowhere) {
        out.emplace_back(EraseJobRecord{id});
    }
    remove(id, out);
}

void DaemonHost::remove(const JobId& id, DaemonEffects& out) {
    jobs_.erase(id);
    out.emplace_back(JobGone{id});
    refuse_orders_of(id, out);
}

/// An unfit node's message, for a job without a run, must not turn another job away.
void DaemonHost::forget_one_without_run(DaemonEffects& out) {
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) {
        return job.second->host.coordinator().run() == nullptr;
    });
    if (found != jobs_.end()) {
        forget(JobId(found->first), out);
    }
}

void DaemonHost::forget_closed(Instant now, DaemonEffects& out) {
    std::vector<JobId> closed;
    for (const auto& [id, job] : jobs_) {
        if (job->host.is_forgettable(now)) {
            closed.push_back(id);
        }
    }
    for (const JobId& id : closed) {
        forget(id, out);
    }
}

}  // namespace ddprun::rdzv
