#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "agent/contract/drain_sources.hpp"

namespace ddprun::agent {

/// Whom notices are told; called from the loop.
struct NoticeEvents {
    std::function<void(const std::string& line)> say;
    std::function<void(const LeaveNotice& notice)> on_notice;
    std::function<void(int pid)> on_child;  ///< one of this process that is no worker's was started
};

/// One of what --drain-on names. Owned and called by the agent's thread.
class DrainNotice {
public:
    virtual ~DrainNotice() = default;

    /// From now on notices come, perhaps the first one at once.
    virtual void start() = 0;
    /// No more come.
    virtual void stop() = 0;
};

[[nodiscard]] inline Clocks read_clocks() {
    const auto wall = std::chrono::system_clock::now();
    return {.now = std::chrono::steady_clock::now(),
            .wall = std::chrono::time_point_cast<Milliseconds>(wall)};
}

}  // namespace ddprun::agent
