#include "worker_runtime/contract/worker_environment.hpp"

#include <cstdint>

namespace ddprun {

namespace {

/// Collects pairs; numbers are written in decimal.
class Collector {
public:
    void add(const WorkerVariable& variable, std::string value) {
        result_.emplace_back(std::string(variable.key), std::move(value));
    }
    void add(const WorkerVariable& variable, int value) { add(variable, std::to_string(value)); }

    Environment take() { return std::move(result_); }

private:
    Environment result_;
};

}  // namespace

Environment worker_environment(const WorkerPlace& place) {
    namespace var = worker_variable;
    Collector env;
    env.add(var::kRank, place.rank.value());
    env.add(var::kWorldSize, place.world_size);
    env.add(var::kLocalRank, place.only_device ? 0 : place.local_rank.value());
    env.add(var::kLocalWorldSize, place.local_world_size);
    env.add(var::kGroupRank, place.group_rank);
    env.add(var::kGroupWorldSize, place.group_world_size);
    env.add(var::kRoleRank, place.role_rank);
    env.add(var::kRoleWorldSize, place.role_world_size);
    env.add(var::kRoleName, place.role);
    env.add(var::kMasterAddr, place.store.host);
    env.add(var::kMasterPort, int{place.store.port});
    env.add(var::kRestartCount, place.restart_count);
    env.add(var::kMaxRestarts, place.max_restarts);
    env.add(var::kRunId, place.job.value());
    // Compared with exactly this spelling by PyTorch's clients.
    env.add(var::kUseAgentStore, place.is_store_of_rank_0 ? "False" : "True");
    env.add(var::kErrorFile, place.error_file);
    if (place.sets_nccl_async_error_handling) {
        env.add(var::kNcclAsyncErrorHandling, 1);
    }
    if (place.omp_num_threads > 0) {
        env.add(var::kOmpNumThreads, place.omp_num_threads);
    }
    if (place.only_device) {
        env.add(var::kCudaVisibleDevices, *place.only_device);
    }
    if (!place.preload.empty()) {
        env.add(var::kPreload, place.preload);
    }
    if (!place.python_path.empty()) {
        env.add(var::kPythonPath, place.python_path);
    }
    env.add(var::kSignalsToHandle, place.signals_to_handle);
    env.add(var::kTrackedRun, place.tracked_run);
    env.add(var::kGeneration, std::to_string(place.generation.value()));
    env.add(var::kNodeId, place.node.value());
    env.add(var::kLocalAddress, place.local_address);
    env.add(var::kStartReason, place.start_reason);
    env.add(var::kTargetWorldSize, place.target_world_size);
    env.add(var::kSlot, place.local_rank.value());
    env.add(var::kPage, place.page);
    return env.take();
}

}  // namespace ddprun
