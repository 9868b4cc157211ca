#include "rendezvous/server/jobs.hpp"

#include <chrono>
#include <utility>

#include "base/os/unix_time.hpp"
#include "base/overloaded.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

Instant now() {
    return std::chrono::steady_clock::now();
}

}  // namespace

Jobs::Shown::Shown(asio::io_context& io, const Limits& limits)
    : timer(io), events(std::make_shared<EventLog>(limits, EventsOf::Job)) {}

Jobs::Jobs(asio::io_context& io, DaemonHostOptions options, Rng rng, JobHooks hooks)
    : io_(io),
      limits_(options.coordinator.limits),
      hooks_(std::move(hooks)),
      host_(std::move(options), rng),
      idle_timer_(io) {}

// ------------------------------------------------------------------------------------------ inputs

void Jobs::begin(Journal* journal, const std::map<JobId, std::string>& records) {
    journal_ = journal;
    DaemonEffects effects;
    host_.begin(now(), journal == nullptr ? Keeping::Nowhere : Keeping::IfPossible, records,
                effects);
    carry_out(std::move(effects));
}

void Jobs::lead(Journal& journal, const std::map<JobId, std::string>& records,
                std::function<bool(Instant)> may_decide) {
    journal_ = &journal;
    DaemonEffects effects;
    host_.lead(now(), records, std::move(may_decide), effects);
    carry_out(std::move(effects));
}

void Jobs::follow(const std::string& leader) {
    DaemonEffects effects;
    host_.follow(leader, effects);
    carry_out(std::move(effects));
}

void Jobs::stop() {
    DaemonEffects effects;
    host_.stop(effects);
    carry_out(std::move(effects));
    idle_timer_.cancel();
}

void Jobs::receives(ConnectionId connection, const AgentMessage& message) {
    DaemonEffects effects;
    host_.receives(now(), connection, message, effects);
    carry_out(std::move(effects));
}

void Jobs::ended(ConnectionId connection, PeerEnd how) {
    DaemonEffects effects;
    host_.ended(now(), connection, how, effects);
    carry_out(std::move(effects));
}

void Jobs::stranger_refused(const JobId& job, const StrangerRefused& stranger) {
    DaemonEffects effects;
    host_.stranger_refused(now(), job, stranger, effects);
    carry_out(std::move(effects));
}

void Jobs::obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) {
    const std::uint64_t number = ++last_order_;
    orders_.emplace(number, std::move(answer));
    DaemonEffects effects;
    host_.order(now(), number, order, from, effects);
    carry_out(std::move(effects));
}

// ----------------------------------------------------------------------------------------- effects

void Jobs::carry_out(DaemonEffects effects) {
    for (const DaemonEffect& effect : effects) {
        carry_out(effect);
    }
}

void Jobs::carry_out(const DaemonEffect& effect) {
    const Overloaded act{
        [this](const Send& send) { hooks_.send(send.connection, send.message); },
        [this](const CloseConnection& close) { hooks_.close(close); },
        [this](const ResetConnection& reset) { hooks_.reset(reset); },
        [this](const DropConnection& drop) { hooks_.drop(drop.connection); },
        [this](const Trace& trace) { hooks_.log(trace.text); },
        [this](const PublishToWatchers& published) { publish(published); },
        [this](const AnswerOrder& answered) { answer(answered); },
        [this](const WriteJobRecord& wanted) { write(wanted); },
        [this](const EraseJobRecord& wanted) { journal_->erase(wanted.job); },
        [this](const SetJobTimer& wanted) { arm(wanted); },
        [this](const SetIdleTimer& wanted) { arm_idle(wanted.at); },
        [this](const ReadArrived& wanted) { read_arrived(wanted.life); },
        [this](const JobStepped& stepped) {
            show(stepped.job);
            hooks_.stepped(stepped.job, host_.run(stepped.job));
        },
        [this](const JobGone& job) { gone(job.job); },
        [this](const ServeStore& store) { hooks_.serve_store(store); },
        [this](const CloseStore&) { hooks_.close_store(); },
    };
    std::visit(act, effect);
}

/// A stream for each run: it ends with the verdict.
void Jobs::publish(const PublishToWatchers& published) {
    Shown& job = show(published.job);
    const Event& event = published.event;
    if (event.kind == EventKind::Begun) {
        job.events->close();
        job.events = std::make_shared<EventLog>(limits_, EventsOf::Job);
    }
    if (job.events->is_closed()) {
        return;  // what its nodes do after the end
    }
    job.events->add(event, now(), unix_now());
    if (event.kind == EventKind::Operator) {
        job.last_order = job.events->next() - 1;
    }
    if (event.kind == EventKind::Verdict) {
        job.events->close();
    }
    hooks_.published();
}

void Jobs::answer(const AnswerOrder& answered) {
    const auto pending = orders_.extract(answered.number);
    if (pending.empty()) {
        return;
    }
    OperatorReply reply = answered.reply;
    const Shown* const job = shown(answered.job);
    reply.event = job != nullptr && reply.fault == OrderFault::None ? job->last_order : 0;
    pending.mapped()(reply);
}

void Jobs::write(const WriteJobRecord& wanted) {
    journal_->write(
        wanted.life.job, encode(wanted.write.record),
        [this, life = wanted.life, number = wanted.write.number](const Result<void>& result) {
            DaemonEffects effects;
            host_.written(now(), life, number, result ? std::string() : result.error().what,
                          effects);
            carry_out(std::move(effects));
        });
}

void Jobs::arm(const SetJobTimer& wanted) {
    asio::steady_timer& timer = show(wanted.life.job).timer;
    timer.expires_at(wanted.at);
    timer.async_wait([this, life = wanted.life](boost::system::error_code cancelled) {
        const Shown* const same = cancelled ? nullptr : shown(life.job);
        // One that was set anew may have fired already.
        if (same == nullptr || same->timer.expiry() > now()) {
            return;
        }
        DaemonEffects effects;
        host_.timer_fired(now(), life, effects);
        carry_out(std::move(effects));
        hooks_.time_passed();
    });
}

void Jobs::arm_idle(Instant at) {
    idle_timer_.expires_at(at);
    idle_timer_.async_wait([this](boost::system::error_code cancelled) {
        if (!cancelled) {
            host_.wait_is_over();
            hooks_.time_passed();
        }
    });
}

void Jobs::read_arrived(const JobLife& life) {
    hooks_.read_ready(life.job);
    DaemonEffects effects;
    host_.nothing_more_arrived(now(), life, effects);
    carry_out(std::move(effects));
}

/// Each follower of the job's events has heard all.
void Jobs::gone(const JobId& job) {
    if (const auto found = shown_.extract(job)) {
        found.mapped()->events->close();
    }
    hooks_.published();
}

// ----------------------------------------------------------------------------------------- looking

Jobs::Shown* Jobs::shown(const JobId& job) const {
    const auto found = shown_.find(job);
    return found == shown_.end() ? nullptr : found->second.get();
}

Jobs::Shown& Jobs::show(const JobId& job) {
    std::unique_ptr<Shown>& its = shown_[job];
    if (its == nullptr) {
        its = std::make_unique<Shown>(io_, limits_);
    }
    return *its;
}

std::shared_ptr<const EventLog> Jobs::events(const JobId& job) const {
    const Shown* const its = shown(job);
    return its == nullptr ? nullptr : its->events;
}

void Jobs::note_told(const JobId& job, const Reached& reached) {
    if (const Shown* const its = shown(job)) {
        its->events->note_told(reached.generation, reached.step, reached.checkpointing);
    }
}

void Jobs::pass(const JobId& job, const std::string& about, std::string line) {
    if (const Shown* const its = shown(job)) {
        its->events->pass(about, std::move(line));
    }
}

void Jobs::drop_passing(const JobId& job) {
    if (const Shown* const its = shown(job)) {
        its->events->drop_passing();
    }
}

void Jobs::erase_records() {
    if (journal_ != nullptr) {
        host_.visit([this](const JobId& id, const Coordinator&) { journal_->erase(id); });
    }
}

}  // namespace ddprun::rdzv
