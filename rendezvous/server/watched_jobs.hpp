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

namespace ddprun::rdzv {

/// The jobs of one daemon for who watches them. Outlives its HttpServer; `jobs` and `progress`
/// outlive it.
class WatchedJobs final : public Watched {
public:
    /// Without `metrics_text` there are no metrics.
    WatchedJobs(Jobs& jobs, ProgressWatch& progress, const Limits& limits, MetricsText metrics_text)
        : jobs_(jobs),
          progress_(progress),
          limits_(limits),
          metrics_text_(std::move(metrics_text)) {}

    /// Another daemon decides, at `leader` (HOST:PORT; empty: nobody is known): it knows more.
    void send_to(std::optional<std::string> leader) { leader_ = std::move(leader); }

    [[nodiscard]] Result<std::shared_ptr<const EventLog>> events(const std::string& job) override;
    [[nodiscard]] Result<std::string> status(const std::string& job) override;
    [[nodiscard]] Result<std::string> metrics(FiguresOf extent, std::size_t watchers) override;
    void follows(const std::string& job) override { progress_.look(JobId(job)); }
    void obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) override;

private:
    [[nodiscard]] Result<void> check_leads() const;

    Jobs& jobs_;
    ProgressWatch& progress_;
    Limits limits_;
    MetricsText metrics_text_;
    std::optional<std::string> leader_;  ///< none: this daemon decides
};

}  // namespace ddprun::rdzv
