#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "rendezvous/events/event_log.hpp"
#include "rendezvous/events/figures_of.hpp"
#include "rendezvous/events/rank_board.hpp"
#include "rendezvous/wire/control.hpp"

namespace ddprun::rdzv {

/// One job for Prometheus.
struct JobFigures {
    JobStatus status;
    std::shared_ptr<const EventLog> events;  ///< never null
    const RankBoard* ranks = nullptr;        ///< null: nothing is known of them
};

/// What a daemon has for Prometheus.
struct DaemonFigures {
    std::vector<JobFigures> jobs;
    std::size_t watchers = 0;  ///< over HTTP
    FiguresOf extent{};
    Instant now{};
};

/// Makes Prometheus' text of them: metrics_text(), where there is prometheus-cpp.
using MetricsText = std::function<std::string(const DaemonFigures&)>;

}  // namespace ddprun::rdzv
