#include "agent/supervise/quiet_watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/planted_bug.hpp"

namespace ddprun::agent {

namespace {

/// Threads that only wait wake now and then: PyTorch's watchdogs look ten times a second. All of a
/// worker's together use a fraction of this. A worker that computes, even now and then, uses more.
constexpr int kIdlePercent = 1;

constexpr int kLooksPerTimeout = 4;

// The least timeout that is learned. A healthy job hardly waits for five minutes without a tick of
// CPU time; jobs that do now and then teach a longer timeout in time.
constexpr Duration kLeastLearned = std::chrono::minutes(5);
constexpr int kStretchFactor = 10;
constexpr Duration kLearningInterval = std::chrono::seconds(15);

}  // namespace

QuietWatch::QuietWatch(const rdzv::JobSettings& settings)
    : fixed_timeout_(settings.hang_timeout), is_learned_(settings.learns_hang_timeout) {}

Duration QuietWatch::timeout() const {
    return is_learned_ ? std::max(kLeastLearned, kStretchFactor * longest_stretch_)
                       : fixed_timeout_;
}

Duration QuietWatch::interval() const {
    return is_learned_ ? kLearningInterval : fixed_timeout_ / kLooksPerTimeout;
}

void QuietWatch::begin(Instant now) {
    if (!is_on()) {
        return;
    }
    next_look_ = now + interval();
    looked_at_ = now;
    alive_at_ = now;
    last_ = {};
    is_looking_at_gpus_ = false;
    is_quiet_ = false;
}

void QuietWatch::end() {
    next_look_.reset();
    is_quiet_ = false;
}

bool QuietWatch::take_due_look(Instant now) {
    if (!next_look_ || now < *next_look_) {
        return false;
    }
    next_look_ = now + interval();
    return true;
}

bool QuietWatch::show_life(Instant now) {
    alive_at_ = now;
    return std::exchange(is_quiet_, false);
}

bool QuietWatch::take(Instant now, const SignsOfLife& seen, int workers) {
    if (!next_look_) {
        return false;
    }
    const bool was_held_up = now - looked_at_ > 2 * interval();
    if (was_held_up) {
        alive_at_ = now;
    } else if (shows_life(now, seen, workers)) {
        if (looked_at_ > alive_at_) {
            longest_stretch_ = std::max(longest_stretch_, now - alive_at_);
        }
        alive_at_ = now;
    }
    looked_at_ = now;
    last_ = seen;
    const bool is_over = is_quiet_ && quiet_for(now) < timeout();
    is_quiet_ = is_quiet_ && !is_over;
    return is_over;
}

bool QuietWatch::take_due_gpu_look(Instant now) {
    if (!next_look_ || is_looking_at_gpus_ || quiet_for(now) < timeout()) {
        return false;
    }
    is_looking_at_gpus_ = true;
    return true;
}

bool QuietWatch::take_gpus(Instant now, bool are_used) {
    if (!next_look_ || !std::exchange(is_looking_at_gpus_, false)) {
        return false;
    }
    if (DDP_RULE(are_used, GpuUseIgnored, false)) {
        // Since when is not known: nothing is learned from it.
        return show_life(now);
    }
    const bool was_quiet = is_quiet_;
    is_quiet_ = quiet_for(now) >= timeout();
    return is_quiet_ != was_quiet;
}

bool QuietWatch::shows_life(Instant now, const SignsOfLife& seen, int workers) const {
    const Duration idle = (now - looked_at_) * kIdlePercent * std::max(workers, 1) / 100;
    // Less than before: a process has ended whose time is counted no more.
    return seen.is_busy || seen.output_bytes != last_.output_bytes ||
           seen.workers != last_.workers || seen.cpu < last_.cpu || seen.cpu - last_.cpu > idle;
}

WorkerSeen QuietWatch::worker(LocalRank local_rank) const {
    const auto index = static_cast<std::size_t>(local_rank.value());
    return index < last_.workers.size() ? last_.workers[index] : WorkerSeen{};
}

}  // namespace ddprun::agent
