#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/limits.hpp"
#include "rendezvous/http/http_server.hpp"
#include "rendezvous/metrics/job_figures.hpp"
#include "rendezvous/server/jobs.hpp"
#include "rendezvous/server/progress_watch.hpp"
#include "rendezvous/server/workers_reading.hpp"

namespace ddprun::rdzv {

/// The jobs of one daemon for who watches them. Outlives its HttpServer; The other three
/// outlive it.
class WatchedJobs final : public Watched {
public:
    /// Without `metrics_text` there are no metrics.
    WatchedJobs(Jobs& jobs, ProgressWatch& progress, WorkersReading& reading, const Limits& limits,
                MetricsText metrics_text)
        : jobs_(jobs),
          progress_(progress),
          reading_(reading),
          limits_(limits),
          metrics_text_(std::move(metrics_text)) {}

    /// Another daemon decides, at `leader` (HOST:PORT; empty: not known): it knows more.
    void send_to(std::optional<std::string> leader) { leader_ = std::move(leader); }

    [[nodiscard]] Result<std::shared_ptr<const EventLog>> events(const std::string& job) override;
    [[nodiscard]] Result<MakeText> status(const std::string& job) override;
    [[nodiscard]] Result<MakeText> metrics(FiguresOf extent, std::size_t watchers) override;
    void follows(const std::string& job) override { progress_.look(JobId(job)); }
    [[nodiscard]] Result<std::uint64_t> read_workers(const std::string& job,
                                                     const ReadWorkers& question) override;
    [[nodiscard]] std::optional<std::string> take_read(std::uint64_t reading) override {
        return reading_.take(reading);
    }
    void end_reading(std::uint64_t reading) override { reading_.end(reading); }
    void obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) override;

private:
    [[nodiscard]] Result<void> check_leads() const;
    [[nodiscard]] Result<JobId> job_named(const std::string& job) const;

    Jobs& jobs_;
    ProgressWatch& progress_;
    WorkersReading& reading_;
    Limits limits_;
    MetricsText metrics_text_;
    std::optional<std::string> leader_;  ///< none: this daemon decides
};

}  // namespace ddprun::rdzv
