#include "worker_runtime/contract/worker_environment.hpp"

#include <fmt/format.h>

namespace ddprun {

Environment worker_environment(const WorkerPlace& place) {
    namespace var = worker_variable;
    Environment env;
    const auto add_if = [&env](bool is_told, const WorkerVariable& variable, const auto& value) {
        if (is_told) {
            env.emplace_back(variable.key, fmt::format("{}", value));
        }
    };
    const auto add = [&add_if](const auto& variable, const auto& value) {
        add_if(true, variable, value);
    };
    add(var::kRank, place.rank.value());
    add(var::kWorldSize, place.world_size);
    add(var::kLocalRank, place.only_device ? 0 : place.local_rank.value());
    add(var::kLocalWorldSize, place.local_world_size);
    add(var::kGroupRank, place.group_rank);
    add(var::kGroupWorldSize, place.group_world_size);
    add(var::kRoleRank, place.role_rank);
    add(var::kRoleWorldSize, place.role_world_size);
    add(var::kRoleName, place.role);
    add(var::kMasterAddr, place.store.host);
    add(var::kMasterPort, int{place.store.port});
    add(var::kRestartCount, place.restart_count);
    add(var::kMaxRestarts, place.max_restarts);
    add(var::kRunId, place.job.value());
    // Compared with exactly this spelling by PyTorch's clients.
    add(var::kUseAgentStore, place.is_store_of_rank_0 ? "False" : "True");
    add(var::kErrorFile, place.error_file);
    add_if(place.sets_nccl_async_error_handling, var::kNcclAsyncErrorHandling, 1);
    add_if(place.omp_num_threads > 0, var::kOmpNumThreads, place.omp_num_threads);
    add_if(place.only_device.has_value(), var::kCudaVisibleDevices, place.only_device.value_or(""));
    add_if(!place.preload.empty(), var::kPreload, place.preload);
    add_if(!place.python_path.empty(), var::kPythonPath, place.python_path);
    add(var::kSignalsToHandle, place.signals_to_handle);
    add(var::kTrackedRun, place.tracked_run);
    add(var::kGeneration, place.generation.value());
    add(var::kNodeId, place.node.value());
    add(var::kLocalAddress, place.local_address);
    add_if(!place.memory_checkpoints.empty(), var::kMemoryCheckpoints, place.memory_checkpoints);
    add(var::kStartReason, place.start_reason);
    add(var::kTargetWorldSize, place.target_world_size);
    add(var::kMemoryPartner,
        place.memory_partner ? fmt::format("{}", *place.memory_partner) : std::string());
    add(var::kSlot, place.local_rank.value());
    add(var::kPage, place.page);
    return env;
}

}  // namespace ddprun
