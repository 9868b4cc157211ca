#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/instant.hpp"
#include "base/watch_limits.hpp"

namespace ddprun::agent {

/// The last step that a worker has told.
struct StepTold {
    std::uint64_t number = 0;
    Instant at{};
    std::optional<Duration> waited;        ///< for other ranks until then, in all
    std::optional<Duration> first_waited;  ///< the same until its first step
    std::optional<std::uint64_t> total_steps;
    std::optional<double> loss;
};

/// How fast a worker is of late: over WatchLimits::pace_window or a little more, where it trains
/// so long; else since its first step. Workers publish their last step. A reader reads it as often
/// as it likes, and the steps that it has read are the samples. Pure.
class RankPace {
public:
    explicit RankPace(const WatchLimits& limits) : limits_(limits) {}

    /// Its first step; before the first sample.
    void begin(std::uint64_t number, Instant at, std::optional<Duration> waited);
    [[nodiscard]] bool has_begun() const { return first_.has_value(); }

    /// Adds the step that the worker reports now.
    void add(const StepTold& told);

    struct Step {
        Duration whole{};             ///< one step
        std::optional<Duration> own;  ///< of that: it did not wait
    };
    /// Returns nothing if fewer than two steps are known.
    [[nodiscard]] std::optional<Step> step() const;

private:
    struct Sample {
        std::uint64_t number = 0;
        Instant at{};
        std::optional<Duration> waited;
    };

    WatchLimits limits_;
    std::optional<Sample> first_;
    std::deque<Sample> samples_;  ///< the newest last; at most pace_samples_max
};

}  // namespace ddprun::agent
