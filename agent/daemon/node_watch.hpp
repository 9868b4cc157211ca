#pragma once

#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/daemon/agent_view.hpp"
#include "agent/daemon/ras_client.hpp"
#include "agent/watch/gpu_figures.hpp"
#include "agent/watch/hang_notice.hpp"
#include "agent/watch/host_memory_notice.hpp"
#include "agent/watch/node_progress.hpp"
#include "agent/watch/ras_status.hpp"
#include "agent/watch/store_silence.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/watch_limits.hpp"
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
        std::function<void(const HangSeen& seen)> on_hang;  ///< it is said already
    };

    /// `hang_notice` 0: hangs are not looked for.
    NodeWatch(boost::asio::io_context& io, std::string host, Milliseconds hang_notice,
              const WatchLimits& limits, const AgentView& agent, const WatchMeans& means, Ask ask);

    /// Workers start.
    void begin(Generation generation, Rank base_rank, int world_size);

    /// No worker is left to watch.
    void end();

    /// Gives the workers what was last found of their GPUs.
    void add_gpu_figures(std::vector<WorkerState>& workers) const {
        agent::add_gpu_figures(gpus_, workers);
    }

    /// Has the GPUs' figures read, for the next request.
    void look_at_gpus();

private:
    void look_for_hang();
    void take_ras(std::optional<std::string> answer);
    void take_store_waits(Generation generation, const rdzv::StoreWaits& waits);
    void look_at_memory();
    void take_gpus(const AllGpuFigures& gpus);
    void count_busy(const std::optional<AllGpuFigures>& gpus);
    void tell_of_node(std::optional<HangSeen> seen);
    void tell_of_job(const std::optional<HangSeen>& seen);

    boost::asio::io_context& io_;
    std::string host_;
    WatchLimits limits_;
    const AgentView& agent_;
    const WatchMeans& means_;
    Ask ask_;
    Generation generation_;
    Rank base_rank_;
    HangNotice hang_notice_;
    HostMemoryNotice memory_notice_;
    DeadlineTimer hang_timer_;
    StoreSilence store_silence_;
    GpuPower gpu_power_;
    RasWatch ras_watch_;
    RasClient ras_client_;
    std::optional<boost::asio::ip::tcp::endpoint> ras_endpoint_;
    AllGpuFigures gpus_;  ///< as they were last told
    bool is_looking_at_gpus_ = false;
    int busy_looks_ = 0;  ///< in the first minute, which begins with the first workers
    bool is_busy_look_due_ = false;
    std::optional<GpuBusy> gpu_busy_;
    int world_size_ = 0;
    DeadlineTimer memory_timer_;
    DeadlineTimer busy_timer_;
};

}  // namespace ddprun::agent
