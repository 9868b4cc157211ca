#include "rendezvous/server/jobs.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/os/unix_time.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

Jobs::Job::Job(asio::io_context& io, const JobId& id, const HostOptions& options, Rng rng,
               std::uint64_t of_this_name)
    : host(id, options, rng),
      timer(io),
      events(std::make_shared<EventLog>(options.coordinator.limits, EventsOf::Job)),
      number(of_this_name) {}

Jobs::Jobs(asio::io_context& io, const Limits& limits, Rng rng, JobHooks hooks, bool is_lasting)
    : io_(io), rng_(rng), hooks_(std::move(hooks)) {
    options_.coordinator = {.limits = limits, .has_leases = true, .is_lasting = is_lasting};
}

void Jobs::begin(Durable durable, std::function<bool(Instant)> may_decide,
                 const std::map<JobId, std::string>& records) {
    stop();
    has_had_any_ = false;
    durable_ = durable;
    options_.keeping = Keeping::Nowhere;
    if (durable.journal != nullptr) {
        options_.keeping = durable.is_strict ? Keeping::Strictly : Keeping::IfPossible;
    }
    options_.may_decide = std::move(may_decide);
    const Instant now = std::chrono::steady_clock::now();
    for (const auto& [id, text] : records) {
        restore(now, id, text);
    }
}

void Jobs::restore(Instant now, const JobId& id, const std::string& text) {
    const Result<RunRecord> record = decode<RunRecord>(text, options_.coordinator.limits);
    if (!record || record->job != id) {
        hooks_.log(fmt::format("the journal's record of job {} cannot be read: {}", id.value(),
                               record ? "it is of another job" : record.error().what));
        return;
    }
    Job& job = add(id);
    has_had_any_ = true;
    HostEffects wanted;
    const Result<void> restored = job.host.restore(now, *record, wanted);
    if (!restored) {
        hooks_.log(restored.error().what);
        remove(id);
        return;
    }
    hooks_.log(fmt::format("job {} goes on from the journal: generation {}, {} nodes", id.value(),
                           record->generation.value(), record->nodes.size()));
    carry_out(id, job, std::move(wanted));
}

Jobs::Job& Jobs::add(const JobId& id) {
    auto job = std::make_unique<Job>(io_, id, options_, Rng(rng_.next()), ++last_number_);
    return *(jobs_[id] = std::move(job));
}

Jobs::Job* Jobs::find(const JobId& id, std::uint64_t number) {
    const auto found = jobs_.find(id);
    return found != jobs_.end() && found->second->number == number ? found->second.get() : nullptr;
}

bool Jobs::open(const JobId& job) {
    if (jobs_.contains(job)) {
        return true;
    }
    forget_closed(std::chrono::steady_clock::now());
    if (jobs_.size() >= options_.coordinator.limits.jobs_max) {
        forget_one_without_run();
    }
    if (jobs_.size() >= options_.coordinator.limits.jobs_max) {
        return false;
    }
    add(job);
    return true;
}

bool Jobs::step(const JobId& job, const Input& input) {
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) {
        return false;
    }
    const Received* received = std::get_if<Received>(&input);
    has_had_any_ |= received != nullptr && std::holds_alternative<Join>(received->message);
    const Instant now = std::chrono::steady_clock::now();
    HostEffects wanted;
    found->second->host.step(now, input, wanted);
    carry_out(job, *found->second, std::move(wanted));
    // A join that was refused opens no run: nothing of it is kept.
    if (found->second->host.coordinator().is_empty()) {
        forget(job);
    }
    return true;
}

void Jobs::obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) {
    if (!jobs_.contains(order.job)) {
        std::vector<std::string> names;
        for (const auto& [id, job] : jobs_) {
            names.push_back(id.value());
        }
        answer({.fault = OrderFault::Unknown,
                .event = 0,
                .text = fmt::format("there is no job {} here; there {}", order.job.value(),
                                    names.empty() ? "is none" : "are " + list_of(names))});
        return;
    }
    if (orders_.size() >= options_.coordinator.limits.orders_max) {
        answer({.fault = OrderFault::Conflict,
                .event = 0,
                .text = fmt::format("{} orders wait for the journal already: ask again",
                                    orders_.size())});
        return;
    }
    const std::uint64_t number = ++last_order_;
    orders_.emplace(number, PendingOrder{order.job, std::move(answer)});
    step(order.job, OrderGiven{.number = number, .order = order, .from = from});
}

void Jobs::answer(std::uint64_t order, const OperatorReply& reply) {
    if (auto pending = orders_.extract(order)) {
        pending.mapped().answer(reply);
    }
}

/// The next daemon that decides may not know of these orders.
void Jobs::refuse_orders_of(const JobId& id) {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, pending] : orders_) {
        if (pending.job == id) {
            numbers.push_back(number);
        }
    }
    for (const std::uint64_t number : numbers) {
        answer(number, {.fault = OrderFault::Conflict,
                        .event = 0,
                        .text = fmt::format("this rendezvous decides about job {} no more: look "
                                            "with ddpctl status whether the order was taken",
                                            id.value())});
    }
}

const Run* Jobs::run(const JobId& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? nullptr : found->second->host.coordinator().run();
}

std::shared_ptr<const EventLog> Jobs::events(const JobId& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? nullptr : found->second->events;
}

void Jobs::note_told(const JobId& job, const Reached& reached) {
    if (const auto found = jobs_.find(job); found != jobs_.end()) {
        found->second->events->note_told(reached.generation, reached.step, reached.checkpointing);
    }
}

void Jobs::pass(const JobId& job, const std::string& about, std::string line) {
    if (const auto found = jobs_.find(job); found != jobs_.end()) {
        found->second->events->pass(about, std::move(line));
    }
}

void Jobs::drop_passing(const JobId& job) {
    if (const auto found = jobs_.find(job); found != jobs_.end()) {
        found->second->events->drop_passing();
    }
}

bool Jobs::are_all_done() const {
    return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) {
        const Coordinator& coordinator = job.second->host.coordinator();
        return coordinator.run() == nullptr || coordinator.is_done();
    });
}

void Jobs::visit(const std::function<void(const JobId&, const Coordinator&)>& look) const {
    for (const auto& [id, job] : jobs_) {
        look(id, job->host.coordinator());
    }
}

void Jobs::erase_records() {
    if (durable_.journal != nullptr) {
        for (const auto& [id, job] : jobs_) {
            durable_.journal->erase(id);
        }
    }
}

void Jobs::stop() {
    while (!jobs_.empty()) {
        remove(JobId(jobs_.begin()->first));
    }
}

/// Each follower of the job's events has heard all.
void Jobs::remove(const JobId& id) {
    const auto found = jobs_.find(id);
    found->second->events->close();
    jobs_.erase(found);
    refuse_orders_of(id);
    hooks_.published();
}

void Jobs::carry_out(const JobId& id, Job& job, HostEffects wanted) {
    hooks_.stepped(id, job.host.coordinator().run());
    for (const Effect& effect : wanted.now) {
        carry_out(id, job, effect);
    }
    for (const WriteRecord& record : wanted.writes) {
        write(id, job, record);
    }
    if (wanted.timer) {
        arm(id, job, *wanted.timer);
    }
}

void Jobs::carry_out(const JobId& id, Job& job, const Effect& effect) {
    if (const auto* send = std::get_if<Send>(&effect)) {
        hooks_.send(send->connection, send->message);
    } else if (const auto* close = std::get_if<CloseConnection>(&effect)) {
        hooks_.close(close->connection, close->reason);
    } else if (const auto* trace = std::get_if<Trace>(&effect)) {
        hooks_.log(fmt::format("{}: {}", id.value(), trace->text));
    } else if (const auto* published = std::get_if<Publish>(&effect)) {
        publish(job, published->event);
    } else if (const auto* ordered = std::get_if<Ordered>(&effect)) {
        OperatorReply reply = ordered->reply;
        reply.event = reply.fault == OrderFault::None ? job.last_order : 0;
        answer(ordered->number, reply);
    }
}

/// A stream for each run: it ends with the verdict.
void Jobs::publish(Job& job, const Event& event) {
    if (event.kind == EventKind::Begun) {
        job.events->close();
        job.events = std::make_shared<EventLog>(options_.coordinator.limits, EventsOf::Job);
    }
    if (job.events->is_closed()) {
        return;  // what its nodes do after the end
    }
    job.events->add(event, std::chrono::steady_clock::now(), unix_now());
    if (event.kind == EventKind::Operator) {
        job.last_order = job.events->next() - 1;
    }
    if (event.kind == EventKind::Verdict) {
        job.events->close();
    }
    hooks_.published();
}

void Jobs::write(const JobId& id, const Job& job, const WriteRecord& wanted) {
    durable_.journal->write(
        id, encode(wanted.record),
        [this, id, number = job.number, write = wanted.number](const Result<void>& result) {
            Job* const same = find(id, number);
            if (same == nullptr) {
                return;
            }
            HostEffects next;
            same->host.written(std::chrono::steady_clock::now(), write,
                               result ? std::string() : result.error().what, next);
            carry_out(id, *same, std::move(next));
        });
}

void Jobs::arm(const JobId& id, Job& job, Instant at) {
    job.timer.expires_at(at);
    job.timer.async_wait([this, id, number = job.number](boost::system::error_code cancelled) {
        Job* const same = find(id, number);
        // One that was set anew may have fired already.
        if (!cancelled && same != nullptr &&
            same->timer.expiry() <= std::chrono::steady_clock::now()) {
            timer_fired(id, *same);
        }
    });
}

void Jobs::timer_fired(const JobId& id, Job& job) {
    const Instant fired = std::chrono::steady_clock::now();
    HostEffects wanted;
    const bool is_due = job.host.wakes(fired, wanted);
    carry_out(id, job, std::move(wanted));
    if (is_due) {
        judge(id, job.number);
    }
    forget_closed(fired);
    hooks_.time_passed();
}

void Jobs::judge(const JobId& id, std::uint64_t number) {
    hooks_.read_ready(id);
    Job* const job = find(id, number);
    if (job == nullptr) {
        return;  // what was read was the end of it
    }
    HostEffects wanted;
    job->host.judge(std::chrono::steady_clock::now(), wanted);
    carry_out(id, *job, std::move(wanted));
    if (job->host.coordinator().is_empty()) {
        forget(id);  // no node came, or came back to it
    }
}

void Jobs::forget(const JobId& id) {
    if (durable_.journal != nullptr) {
        durable_.journal->erase(id);
    }
    remove(id);
}

/// An unfit node's message, for a job without a run, must not turn another job away.
void Jobs::forget_one_without_run() {
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) {
        return job.second->host.coordinator().run() == nullptr;
    });
    if (found != jobs_.end()) {
        forget(JobId(found->first));
    }
}

void Jobs::forget_closed(Instant now) {
    std::vector<JobId> closed;
    for (const auto& [id, job] : jobs_) {
        if (job->host.is_forgettable(now)) {
            closed.push_back(id);
        }
    }
    for (const JobId& id : closed) {
        forget(id);
    }
}

}  // namespace ddprun::rdzv
