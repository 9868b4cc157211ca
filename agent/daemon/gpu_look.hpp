#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/core/supervisor.hpp"
#include "agent/daemon/timed_program.hpp"
#include "rendezvous/protocol/limits.hpp"

namespace ddprun::agent {

/// Has ddprun-gpu-use find out whether workers use GPUs: a process of its own, for a driver may
/// never answer, and its library is larger than the agent. It is killed when its time is up, and
/// started no more while one that was killed is still there. Owned and called by the agent's
/// thread.
class GpuLook {
public:
    struct Events {
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
        std::function<void(GpusLooked)> on_done;
    };

    GpuLook(boost::asio::io_context& io, const rdzv::Limits& limits, Events events);

    /// At the workers `pids` and all that belongs to them. Answered by one on_done, perhaps at
    /// once: what cannot be found out is no use. `owner` keeps this object alive until then.
    void look(const LookAtGpus& order, const std::vector<int>& pids,
              const std::shared_ptr<const void>& owner);

    /// The generation is to be emptied: there is no on_done any more.
    void cancel() { program_.cancel(); }

private:
    /// False: it does not run.
    [[nodiscard]] bool start(const LookAtGpus& order, const std::vector<int>& pids,
                             const std::shared_ptr<const void>& owner);

    TimedProgram program_;
    rdzv::Limits limits_;
    Events events_;
    Generation generation_;
};

}  // namespace ddprun::agent
