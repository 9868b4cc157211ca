#include "rendezvous/server/watched_jobs.hpp"

#include <chrono>
#include <vector>

#include <fmt/format.h>

#include "base/os/unix_time.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/status.hpp"
#include "rendezvous/server/control.hpp"

namespace ddprun::rdzv {

namespace {

/// When the last save was complete, since 1970; 0: there was none.
Milliseconds saved_at(const SaveFigures& saves, Instant now) {
    if (!saves.last()) {
        return Milliseconds(0);
    }
    return unix_now() - std::chrono::duration_cast<Milliseconds>(now - saves.last()->at);
}

}  // namespace

Result<void> WatchedJobs::check_leads() const {
    if (!leader_) {
        return {};
    }
    return Error{ErrorCode::Unreachable,
                 leader_->empty() ? std::string("no daemon leads at the moment: ask again")
                                  : fmt::format("the daemon at {} leads: ask that", *leader_)};
}

/// Empty: the only one.
Result<JobId> WatchedJobs::job_named(const std::string& job) const {
    if (const Result<void> leads = check_leads(); !leads) {
        return leads.error();
    }
    if (!job.empty()) {
        if (jobs_.events(JobId(job)) == nullptr) {
            return Error{ErrorCode::NotFound,
                         fmt::format("there is no job {}; /status lists them", job)};
        }
        return JobId(job);
    }
    std::vector<JobId> all;
    jobs_.host().visit([&all](const JobId& id, const Coordinator&) { all.push_back(id); });
    if (all.size() != 1) {
        return Error{ErrorCode::NotFound,
                     all.empty() ? std::string("there is no job yet")
                                 : fmt::format("there are {} jobs, /status lists them: say which "
                                               "by ?job=NAME",
                                               all.size())};
    }
    return all.front();
}

Result<std::shared_ptr<const EventLog>> WatchedJobs::events(const std::string& job) {
    const Result<JobId> named = job_named(job);
    if (!named) {
        return named.error();
    }
    return std::shared_ptr<const EventLog>(jobs_.events(*named));
}

Result<std::uint64_t> WatchedJobs::read_workers(const std::string& job,
                                                const ReadWorkers& question) {
    const Result<JobId> named = job_named(job);
    return named ? reading_.begin(*named, question) : named.error();
}

Result<Watched::MakeText> WatchedJobs::metrics(FiguresOf extent, std::size_t watchers) {
    if (!metrics_text_) {
        return Error{ErrorCode::NotFound,
                     "this ddprun-rendezvous has no /metrics: it was built without prometheus-cpp"};
    }
    const Instant now = std::chrono::steady_clock::now();
    DaemonFigures daemon{.jobs = {}, .watchers = watchers, .extent = extent};
    // One that does not lead knows no job, and says so.
    if (!leader_) {
        progress_.look(JobId());
        const StatusExtent all{.nodes_max = limits_.nodes_max, .events_max = 0};
        jobs_.host().visit([this, &daemon, &all, now](const JobId& id,
                                                      const Coordinator& coordinator) {
            if (coordinator.run() == nullptr) {
                return;
            }
            const EventLog& events = *jobs_.events(id);
            const RankBoard* board = progress_.board(id);
            daemon.jobs.push_back({.status = status_of(id, *coordinator.run(), now, all),
                                   .counts = events.counts(),
                                   .time = events.time_use().shares(now),
                                   .saves = events.saves(),
                                   .saved_at = saved_at(events.saves(), now),
                                   .ranks = board ? std::optional(board->told()) : std::nullopt});
        });
    }
    return MakeText([make = metrics_text_, daemon = std::move(daemon)] { return make(daemon); });
}

Result<Watched::MakeText> WatchedJobs::status(const std::string& job) {
    if (const Result<void> leads = check_leads(); !leads) {
        return leads.error();
    }
    if (!job.empty() && jobs_.events(JobId(job)) == nullptr) {
        return Error{ErrorCode::NotFound,
                     fmt::format("there is no job {}; /status lists them", job)};
    }
    progress_.look(JobId(job));
    return status_text(JobId(job), jobs_, progress_, limits_);
}

void WatchedJobs::obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) {
    if (const Result<void> leads = check_leads(); !leads) {
        answer(leads.error());
        return;
    }
    jobs_.obey(order, from, std::move(answer));
}

}  // namespace ddprun::rdzv
