#pragma once

#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/gpu/gpu_helper.hpp"
#include "agent/gpu/gpu_memory.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"

namespace ddprun::agent {

/// Waits until the driver has freed what ended workers had on the GPUs. A driver that does not
/// answer is not asked again. Owned and called by the agent's thread.
class GpuMemoryWait {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        std::function<void()> on_done;
    };

    GpuMemoryWait(boost::asio::io_context& io, GpuHelper& helper, const Limits& limits,
                  Events events);

    /// The first workers are about to start: what is in use now is not theirs. Only the first call
    /// does something.
    void remember();

    /// No process of the workers is left. Answered by one on_done, perhaps at once, and in
    /// Limits::gpu_memory_timeout at most.
    void wait();

    /// There is no on_done any more.
    void cancel();

private:
    void ask();
    void take(const std::optional<GpuBytes>& now);
    void pause();
    void say_unanswered();
    void finish();

    GpuHelper& helper_;
    Limits limits_;
    Events events_;
    GpuMemoryWatch watch_;
    DeadlineTimer timer_;
    bool is_remembered_ = false;  ///< or asked for
    bool is_unanswered_ = false;
    bool is_waiting_ = false;
    Instant until_{};
    Milliseconds pause_{};
};

}  // namespace ddprun::agent
