#include "agent/daemon/progress_teller.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/watch_limits.hpp"

namespace ddprun::agent {

ProgressTeller::ProgressTeller(boost::asio::io_context& io, std::function<void()> tell)
    : tell_(std::move(tell)), timer_(io, [this] { turn(); }) {}

void ProgressTeller::hear(const rdzv::Watch& watch) {
    const WatchLimits limits;
    const Instant now = std::chrono::steady_clock::now();
    const bool is_telling = until_ > now;
    interval_ = std::max(watch.interval, limits.progress_interval);
    until_ = now + std::min(watch.lasts, limits.watched_for);
    if (!is_telling && !is_stopped_) {
        timer_.set(now);
    }
}

void ProgressTeller::turn() {
    const Instant now = std::chrono::steady_clock::now();
    if (now < until_) {
        tell_();
        timer_.set(now + interval_);
    }
}

void ProgressTeller::stop() {
    is_stopped_ = true;
    timer_.set(std::nullopt);
}

}  // namespace ddprun::agent
