#include "rendezvous/server/jobs.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ddprun::rdzv {

namespace asio = boost::asio;

Jobs::Job::Job(asio::io_context& io, const JobId& id, const CoordinatorOptions& options, Rng rng)
    : coordinator(id, options, rng), timer(io) {}

Jobs::Jobs(asio::io_context& io, const Limits& limits, Rng rng, JobHooks hooks, Durable durable,
           bool is_lasting)
    : io_(io),
      options_{.limits = limits, .has_leases = true, .is_lasting = is_lasting},
      rng_(rng),
      hooks_(std::move(hooks)),
      durable_(durable) {}

void Jobs::restore(const std::map<JobId, std::string>& records) {
    const Instant now = std::chrono::steady_clock::now();
    for (const auto& [id, text] : records) {
        const Result<RunRecord> record = decode_run_record(text, options_.limits);
        if (!record || record->job != id) {
            hooks_.log(fmt::format("the journal's record of job {} cannot be read: {}", id.value(),
                                   record ? "it is of another job" : record.error().what));
            continue;
        }
        Job& job = add(id);
        has_had_any_ = true;
        const Result<void> restored = job.coordinator.restore(now, *record);
        if (!restored) {
            hooks_.log(restored.error().what);
            jobs_.erase(id);
            continue;
        }
        hooks_.log(fmt::format("job {} goes on from the journal: generation {}, {} nodes",
                               id.value(), record->generation.value(), record->nodes.size()));
        hooks_.stepped(id, job.coordinator.run());
        arm(now, id, job);
    }
}

Jobs::Job& Jobs::add(const JobId& id) {
    auto job = std::make_unique<Job>(io_, id, options_, Rng(rng_.next()));
    RecorderHooks hooks;
    hooks.carry_out = [this, id](const Effect& effect) { carry_out(id, effect); };
    hooks.record = [coordinator = &job->coordinator] {
        const auto record = coordinator->record(std::chrono::steady_clock::now());
        return record ? encode(*record) : std::string();
    };
    hooks.durability = [this, id](const std::string& fault) { durability_changed(id, fault); };
    job->recorder =
        std::make_shared<Recorder>(io_, id, options_.limits, durable_, std::move(hooks));
    return *(jobs_[id] = std::move(job));
}

void Jobs::durability_changed(const JobId& id, const std::string& fault) {
    if (!fault.empty()) {
        hooks_.log(fmt::format("job {} is not durable: {}", id.value(), fault));
    }
    if (!fault.empty() && durable_.is_strict) {
        // Nothing goes out until it is: who joins is not answered, and does not beat before.
        static_cast<void>(step(id, HeldUp{}));
    }
    static_cast<void>(step(id, Durability{fault}));
}

bool Jobs::open(const JobId& job) {
    if (jobs_.contains(job)) {
        return true;
    }
    forget_closed(std::chrono::steady_clock::now());
    if (jobs_.size() >= options_.limits.jobs_max) {
        forget_one_without_run();
    }
    if (jobs_.size() >= options_.limits.jobs_max) {
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
    const Instant now = std::chrono::steady_clock::now();
    if (!hooks_.may_decide(now)) {
        return true;
    }
    const Received* received = std::get_if<Received>(&input);
    has_had_any_ |= received != nullptr && std::holds_alternative<Join>(received->message);
    admit_hold_up(now, job, *found->second);
    step_at(now, job, *found->second, input);
    // A join that was refused opens no run: nothing of it is kept.
    if (found->second->coordinator.is_empty()) {
        forget(job);
    }
    return true;
}

const Run* Jobs::run(const JobId& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? nullptr : found->second->coordinator.run();
}

bool Jobs::are_all_done() const {
    return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) {
        return job.second->coordinator.run() == nullptr || job.second->coordinator.is_done();
    });
}

void Jobs::visit(const std::function<void(const JobId&, const Coordinator&)>& look) const {
    for (const auto& [id, job] : jobs_) {
        look(id, job->coordinator);
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
    is_stopped_ = true;
    for (const auto& [id, job] : jobs_) {
        job->recorder->stop();
    }
    jobs_.clear();
}

void Jobs::step_at(Instant now, const JobId& id, Job& job, const Input& input) {
    Effects effects;
    job.coordinator.step(now, input, effects);
    hooks_.stepped(id, job.coordinator.run());
    job.recorder->take(std::move(effects));
    arm(now, id, job);
}

// A timer that is due and has not fired yet tells that this thread got no time. Every input comes
// through here first, because sockets are served before timers.
void Jobs::admit_hold_up(Instant now, const JobId& id, Job& job) {
    if (!job.armed || now - *job.armed <= options_.limits.lease / 2) {
        return;
    }
    const Duration by = now - *job.armed;
    job.armed = now;  // told once
    hooks_.log(fmt::format("this process was held up for {} ms: leases are extended",
                           std::chrono::duration_cast<Milliseconds>(by).count()));
    step_at(now, id, job, HeldUp{by});
}

void Jobs::carry_out(const JobId& id, const Effect& effect) {
    if (const auto* send = std::get_if<Send>(&effect)) {
        hooks_.send(send->connection, send->message);
    } else if (const auto* close = std::get_if<CloseConnection>(&effect)) {
        hooks_.close(close->connection, close->reason);
    } else if (const auto* trace = std::get_if<Trace>(&effect)) {
        hooks_.log(fmt::format("{}: {}", id.value(), trace->text));
    }
}

// A deadline that moved away (every beat does that) leaves the timer alone: it fires, finds nothing
// due and is set anew. That is one wake-up per lease instead of two timer operations per beat.
void Jobs::arm(Instant now, const JobId& id, Job& job) {
    const std::optional<Instant> deadline = job.coordinator.next_deadline();
    if (!deadline || (job.armed && *job.armed <= *deadline)) {
        return;
    }
    // A deadline in the past is no hold-up of the loop.
    job.armed = std::max(*deadline, now);
    job.timer.expires_at(*job.armed);
    job.armed_number = ++last_armed_number_;
    job.timer.async_wait([self = shared_from_this(), id, number = job.armed_number](
                             boost::system::error_code) { self->timer_fired(id, number); });
}

void Jobs::timer_fired(const JobId& id, std::uint64_t number) {
    const auto found = jobs_.find(id);
    // A timer that was set anew, or whose job is gone: maybe another job has its name by now.
    if (is_stopped_ || found == jobs_.end() || found->second->armed_number != number) {
        return;
    }
    Job& job = *found->second;
    const Instant fired = std::chrono::steady_clock::now();
    if (!hooks_.may_decide(fired)) {
        return;
    }
    admit_hold_up(fired, id, job);
    const std::optional<Instant> deadline = job.coordinator.next_deadline();
    if (deadline && *deadline <= fired) {
        hooks_.read_ready(id);
        job.armed.reset();
        step_at(std::chrono::steady_clock::now(), id, job, Tick{});
        if (job.coordinator.is_empty()) {
            forget(id);  // nobody came, or came back to it
        }
    } else {
        job.armed.reset();
        arm(fired, id, job);
    }
    forget_closed(fired);
    hooks_.time_passed();
}

void Jobs::forget(const JobId& id) {
    jobs_.at(id)->recorder->stop();
    if (durable_.journal != nullptr) {
        durable_.journal->erase(id);
    }
    jobs_.erase(id);
}

/// Who was not fit for a job that nobody has joined is not worth turning another job away.
void Jobs::forget_one_without_run() {
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) {
        return job.second->coordinator.run() == nullptr;
    });
    if (found != jobs_.end()) {
        forget(JobId(found->first));
    }
}

void Jobs::forget_closed(Instant now) {
    std::vector<JobId> closed;
    for (const auto& [id, job] : jobs_) {
        if (job->coordinator.is_forgettable(now)) {
            closed.push_back(id);
        }
    }
    for (const JobId& id : closed) {
        forget(id);
    }
}

}  // namespace ddprun::rdzv
