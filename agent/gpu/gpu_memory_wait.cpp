#include "agent/gpu/gpu_memory_wait.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/os/unix_time.hpp"
#include "base/watch_limits.hpp"

namespace ddprun::agent {

namespace {

std::optional<GpuBytes> memory_from(const std::optional<std::string>& answer) {
    return answer ? gpu_memory_from(*answer) : std::nullopt;
}

}  // namespace

GpuMemoryWait::GpuMemoryWait(boost::asio::io_context& io, GpuHelper& helper, const Limits& limits,
                             Events events)
    : helper_(helper),
      limits_(limits),
      events_(std::move(events)),
      watch_(limits),
      timer_(io, [this] { ask(); }) {}

void GpuMemoryWait::remember() {
    if (std::exchange(is_remembered_, true)) {
        return;
    }
    helper_.ask("memory", limits_.gpu_start_timeout,
                [this](const std::optional<std::string>& answer) {
                    if (std::optional<GpuBytes> before = memory_from(answer)) {
                        watch_.remember(std::move(*before));
                    } else {
                        say_unanswered();
                    }
                });
}

void GpuMemoryWait::wait() {
    if (is_unanswered_ || !watch_.can_tell()) {
        // Workers that ended before the driver's library has even started had nothing there.
        events_.on_done();
        return;
    }
    is_waiting_ = true;
    until_ = clock_now() + limits_.gpu_memory_timeout;
    pause_ = WatchLimits().gpu_memory_look_min;
    ask();
}

void GpuMemoryWait::cancel() {
    is_waiting_ = false;
    timer_.set(std::nullopt);
}

void GpuMemoryWait::ask() {
    const auto left = std::chrono::ceil<Milliseconds>(until_ - clock_now());
    helper_.ask("memory " + text_of(watch_.allowed()),
                std::max(left, WatchLimits().gpu_memory_look_max),
                [this](const std::optional<std::string>& answer) {
                    if (is_waiting_) {
                        take(memory_from(answer));
                    }
                });
}

void GpuMemoryWait::take(const std::optional<GpuBytes>& now) {
    if (!now) {
        say_unanswered();
        finish();
    } else if (watch_.is_freed(*now)) {
        finish();
    } else if (clock_now() + pause_ > until_) {
        events_.say(watch_.give_up());
        finish();
    } else {
        pause();
    }
}

void GpuMemoryWait::pause() {
    timer_.set(clock_now() + pause_);
    pause_ = std::min(pause_ * 2, WatchLimits().gpu_memory_look_max);
}

void GpuMemoryWait::say_unanswered() {
    is_unanswered_ = true;
    events_.say(
        "warning: NVIDIA's driver does not answer; generations start without knowing whether the "
        "GPU memory of the last one is freed");
}

void GpuMemoryWait::finish() {
    is_waiting_ = false;
    events_.on_done();
}

}  // namespace ddprun::agent
