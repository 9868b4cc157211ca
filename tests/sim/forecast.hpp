#pragma once

#include <cstdint>
#include <string>

#include "base/instant.hpp"
#include "base/result.hpp"

namespace ddprun::sim {

/// Describes a job of which a user wants a forecast before its start.
struct ForecastOptions {
    int nodes = 1;           ///< of the job
    int min_nodes = 0;       ///< enough to continue; 0: all
    int spares = 0;          ///< beyond that, ready from the start
    int slots = 8;           ///< workers of a node
    Duration mtbf{};         ///< from one failure of the whole job to the next, on average
    int worker_percent = 0;  ///< of the failures: a worker that crashes; else its node falls silent
    Duration repair{};       ///< then it is back
    Duration checkpoint_every{};
    Duration checkpoint_takes{};  ///< training stands still meanwhile
    Duration restart_takes{};     ///< from the start of workers to the first new step
    Duration stop_takes{};        ///< from SIGTERM to the end of workers
    Duration lasts{};
    Duration lease{};
    std::uint64_t seed = 1;
};

/// The uses of the time. The parts add up to `total`.
struct Forecast {
    int failures = 0;
    int restarts = 0;
    int nodes_replaced = 0;
    Duration total{};
    Duration useful{};     ///< work that was not lost
    Duration noticing{};   ///< from a failure to the order to stop
    Duration forming{};    ///< from then until workers are started
    Duration waiting{};    ///< of that: for nodes, while fewer than the minimum ran
    Duration starting{};   ///< restart_takes
    Duration lost_work{};  ///< since the last checkpoint
    Duration checkpoints{};
    Duration smaller{};  ///< work that fewer nodes did not do
    Duration noticing_max{};
    Duration forming_max{};   ///< without waiting
    std::uint64_t steps = 0;  ///< of coordinator and supervisors
    double cpu_seconds = 0;

    [[nodiscard]] double goodput() const {
        return total.count() == 0
                   ? 0
                   : static_cast<double>(useful.count()) / static_cast<double>(total.count());
    }
};

/// Runs the job with real Coordinator and Supervisors on virtual time.
[[nodiscard]] Forecast forecast(const ForecastOptions& options);

[[nodiscard]] std::string forecast_table(const ForecastOptions& options, const Forecast& result);
[[nodiscard]] std::string forecast_json(const ForecastOptions& options, const Forecast& result);

/// "6h", "10m", "90s", "500ms", "30d". Failure is InvalidArgument.
[[nodiscard]] Result<Duration> parse_duration(const std::string& text);

}  // namespace ddprun::sim
