#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "agent/daemon/generation_on_node.hpp"
#include "agent/daemon/store_host.hpp"
#include "agent/gpu/gpu_helper.hpp"
#include "agent/supervise/supervisor.hpp"
#include "rendezvous/client/link.hpp"

namespace ddprun::agent {

/// The parts of an agent as those see them that watch: read only. A new sign or event reads what it
/// needs from here. On the agent's thread.
struct AgentView {
    const Supervisor& supervisor;
    const std::optional<GenerationOnNode>& generation;  ///< none: nothing is left of the last one
    const StoreHost& store;

    /// Returns what the workers of `number` have told, by local rank; empty: they are gone.
    [[nodiscard]] std::vector<WorkerMoments> moments(Generation number) const {
        return generation && generation->number() == number ? generation->moments()
                                                            : std::vector<WorkerMoments>();
    }

    /// The pids of the workers here, by local rank; 0: there is none.
    [[nodiscard]] std::vector<int> pids() const {
        std::vector<int> pids;
        if (generation) {
            pids.resize(generation->workers().size());
            for (const auto& [local_rank, pid] : generation->pids()) {
                pids.at(static_cast<std::size_t>(local_rank.value())) = pid;
            }
        }
        return pids;
    }
};

/// Those that watch act through these.
struct WatchMeans {
    rdzv::Link& link;  ///< sends what is seen, and takes orders
    StoreHost& store;  ///< asks who waits, and ends its estimates
    GpuHelper* gpus;   ///< asks what the GPUs do; null: workers see none whose driver reports it
    std::function<void(int pid)> on_child;  ///< a child was started that is no worker's
};

}  // namespace ddprun::agent
