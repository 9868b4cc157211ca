#include "rendezvous/core/budgets.hpp"

#include <algorithm>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"

namespace ddprun::rdzv {

bool Budgets::has_restart_left(const JobSettings& settings) const {
    return restarts_used < settings.max_restarts;
}

bool Budgets::may_lose(const JobSettings& settings, std::size_t nodes) const {
    const int bound = settings.max_node_losses;
    return bound < 0 || node_losses_used + static_cast<int>(nodes) <= bound;
}

bool Budgets::is_without_progress(const JobSettings& settings) const {
    const int most = settings.max_restarts_at_step;
    return most > 0 && failed_step && failures_at_step > most;
}

void Budgets::learn_step(std::optional<std::uint64_t> failed_at) {
    const bool is_there_again = failed_at && failed_at == failed_step;
    failures_at_step = is_there_again ? failures_at_step + 1 : 1;
    failed_step = failed_at;
}

int Budgets::learn_likeness(const std::string& likeness) {
    alike = likeness.empty() ? 0 : likeness == last_likeness ? alike + 1 : 1;
    last_likeness = likeness;
    return alike;
}

void Budgets::learn_used(const HeldGeneration& held, const JobSettings& settings) {
    restarts_used = std::min(std::max(restarts_used, held.restart_count), settings.max_restarts);
    node_losses_used = std::max(node_losses_used, held.node_losses);
    if (settings.max_node_losses >= 0) {
        node_losses_used = std::min(node_losses_used, settings.max_node_losses);
    }
}

std::optional<Instant> RestartPace::back_off(const Limits& limits, Instant now) {
    std::deque<Instant>& starts = recent_starts_;
    if (!starts.empty() && now - starts.back() >= limits.restart_burst_window) {
        next_pause_ = Milliseconds::zero();
    }
    while (!starts.empty() && now - starts.front() > limits.restart_burst_window) {
        starts.pop_front();
    }
    if (DDP_RULE(starts.size() <= static_cast<std::size_t>(limits.restart_burst_max),
                 BackoffMissing, true)) {
        return std::nullopt;
    }
    DDP_PROBE(restart_burst_used_up);
    const Milliseconds pause = std::max(next_pause_, limits.restart_backoff);
    next_pause_ = std::min(pause * 2, limits.restart_backoff_max);
    return now + pause;
}

}  // namespace ddprun::rdzv
