#pragma once

#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/core/hang_notice.hpp"
#include "agent/core/host_memory_notice.hpp"
#include "agent/core/node_progress.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Looks at the workers of a node every now and then, and says what people would want to know: that
/// they go nowhere, that memory gets short. On the agent's thread; outlives the run of the loop.
class NodeWatch {
public:
    struct Ask {
        std::function<std::vector<WorkerState>()> workers;  ///< of the generation that began last
        std::function<rdzv::Progress()> progress;           ///< with their memory
        std::function<void(const std::string& line)> say;
        std::function<void(const rdzv::Event& event)> keep;
    };

    /// `hang_notice` 0: hangs are not looked for.
    NodeWatch(boost::asio::io_context& io, std::string host, Milliseconds hang_notice,
              const WatchLimits& limits, Ask ask);

    /// Workers start.
    void begin(Generation generation, Rank base_rank);

    /// There is nobody to look at.
    void end();

private:
    void look_for_hang();
    void look_at_memory();
    void tell(const HangSeen& seen);

    std::string host_;
    WatchLimits limits_;
    Ask ask_;
    Generation generation_;
    Rank base_rank_;
    HangNotice hang_notice_;
    HostMemoryNotice memory_notice_;
    DeadlineTimer hang_timer_;
    DeadlineTimer memory_timer_;
};

}  // namespace ddprun::agent
