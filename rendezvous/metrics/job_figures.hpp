#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "rendezvous/events/event_counts.hpp"
#include "rendezvous/events/figures_of.hpp"
#include "rendezvous/events/rank_board.hpp"
#include "rendezvous/events/save_figures.hpp"
#include "rendezvous/events/time_use.hpp"
#include "rendezvous/wire/control.hpp"

namespace ddprun::rdzv {

/// One job for Prometheus.
struct JobFigures {
    JobStatus status;
    EventCounts counts;
    TimeShares time;
    SaveFigures saves;
    Milliseconds saved_at{0};        ///< the last save was complete, since 1970
    std::optional<RanksTold> ranks;  ///< none: nothing is known of them
};

/// Figures of a daemon for Prometheus.
struct DaemonFigures {
    std::vector<JobFigures> jobs;
    std::size_t watchers = 0;  ///< over HTTP
    FiguresOf extent{};
};

/// Makes Prometheus' text of them: metrics_text(), where there is prometheus-cpp.
using MetricsText = std::function<std::string(const DaemonFigures&)>;

}  // namespace ddprun::rdzv
