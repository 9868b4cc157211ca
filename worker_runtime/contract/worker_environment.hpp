#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tagged.hpp"
#include "worker_runtime/contract/store_address.hpp"

/// The environment contract between an agent and its workers: the one place that knows the keys.
/// An agent writes them (worker_environment), a worker reads them by the constants below.
namespace ddprun {

struct WorkerVariable {
    std::string_view key;
    std::string_view meaning;
};

namespace worker_variable {

inline constexpr WorkerVariable kRank{"RANK", "place among all workers of the generation"};
inline constexpr WorkerVariable kWorldSize{"WORLD_SIZE", "number of all workers"};
inline constexpr WorkerVariable kLocalRank{"LOCAL_RANK", "place among this node's workers"};
inline constexpr WorkerVariable kLocalWorldSize{"LOCAL_WORLD_SIZE", "workers of this node"};
inline constexpr WorkerVariable kGroupRank{"GROUP_RANK", "place of this node among the nodes"};
inline constexpr WorkerVariable kGroupWorldSize{"GROUP_WORLD_SIZE", "number of nodes"};
inline constexpr WorkerVariable kRoleRank{"ROLE_RANK", "place among the workers of the same role"};
inline constexpr WorkerVariable kRoleWorldSize{"ROLE_WORLD_SIZE", "workers of the same role"};
inline constexpr WorkerVariable kRoleName{"ROLE_NAME", "role of this node (--role)"};
inline constexpr WorkerVariable kMasterAddr{"MASTER_ADDR", "host of the generation's store"};
inline constexpr WorkerVariable kMasterPort{"MASTER_PORT", "port of the generation's store"};
inline constexpr WorkerVariable kRestartCount{"TORCHELASTIC_RESTART_COUNT",
                                              "worker restarts the run has used"};
inline constexpr WorkerVariable kMaxRestarts{"TORCHELASTIC_MAX_RESTARTS",
                                             "worker restarts the run may use"};
inline constexpr WorkerVariable kRunId{"TORCHELASTIC_RUN_ID", "the job id (--rdzv-id)"};
inline constexpr WorkerVariable kUseAgentStore{"TORCHELASTIC_USE_AGENT_STORE",
                                               "True: an agent serves the store; False: "
                                               "rank 0 does"};
inline constexpr WorkerVariable kErrorFile{"TORCHELASTIC_ERROR_FILE",
                                           "where a worker may write its error; empty: nowhere"};
inline constexpr WorkerVariable kNcclAsyncErrorHandling{
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1, unless ddprun was started with another value"};
inline constexpr WorkerVariable kOmpNumThreads{
    "OMP_NUM_THREADS",
    "its share of the node's cores, where it was unset and a node has several workers"};
inline constexpr WorkerVariable kCudaVisibleDevices{
    "CUDA_VISIBLE_DEVICES", "the worker's one device, with --virtual-local-rank"};
inline constexpr WorkerVariable kPreload{
    "LD_PRELOAD", "ddprun-preload.so before what it was, with --watch preload"};
inline constexpr WorkerVariable kPythonPath{
    "PYTHONPATH",
    "ddprun's own Python part before what it was, for a Python that ddprun starts; that part takes "
    "itself out again before the program runs"};
inline constexpr WorkerVariable kSignalsToHandle{"TORCHELASTIC_SIGNALS_TO_HANDLE",
                                                 "signals on which ddprun drains"};
inline constexpr WorkerVariable kTrackedRun{
    "DDPRUN_RUN_ID", "32 digits (hex) of this run: the same after restarts and requeues"};
inline constexpr WorkerVariable kGeneration{"DDPRUN_GENERATION",
                                            "number of the generation, from 1, only growing"};
inline constexpr WorkerVariable kNodeId{"DDPRUN_NODE_ID", "identity of this node"};
inline constexpr WorkerVariable kLocalAddress{"DDPRUN_LOCAL_ADDR",
                                              "this node's address towards the others"};
inline constexpr WorkerVariable kMemoryCheckpoints{
    "DDPRUN_MEMORY_CHECKPOINTS",
    "socket of the program that keeps checkpoints in memory, @ and an abstract name, with "
    "--memory-checkpoints"};
inline constexpr WorkerVariable kStartReason{"DDPRUN_START_REASON",
                                             "why this generation started; empty: the first"};
inline constexpr WorkerVariable kTargetWorldSize{
    "DDPRUN_TARGET_WORLD_SIZE",
    "workers of the largest size that --nnodes allows: what the global batch is meant for"};
inline constexpr WorkerVariable kMemoryPartner{
    "DDPRUN_MEMORY_PARTNER",
    "group rank of the node that holds a copy of this node's memory checkpoints; empty: none"};
inline constexpr WorkerVariable kSlot{"DDPRUN_SLOT",
                                      "as LOCAL_RANK, but never made 0 by --virtual-local-rank"};
inline constexpr WorkerVariable kPage{"DDPRUN_PAGE",
                                      "path of the page shared with the agent; empty: none"};
/// No worker finds it: a standby takes it away before its program runs.
inline constexpr WorkerVariable kStandby{"DDPRUN_STANDBY", "descriptor of the socket of a standby"};
/// No program finds it: ddprun's part of a Python and the worker runtime take it away.
inline constexpr WorkerVariable kImports{
    "DDPRUN_IMPORTS", "path of the pipe for what a worker imports, or that it waits by itself"};

}  // namespace worker_variable

/// Every key a worker may find, in the order in which worker_environment() gives them.
inline constexpr std::array kWorkerVariables{
    worker_variable::kRank,
    worker_variable::kWorldSize,
    worker_variable::kLocalRank,
    worker_variable::kLocalWorldSize,
    worker_variable::kGroupRank,
    worker_variable::kGroupWorldSize,
    worker_variable::kRoleRank,
    worker_variable::kRoleWorldSize,
    worker_variable::kRoleName,
    worker_variable::kMasterAddr,
    worker_variable::kMasterPort,
    worker_variable::kRestartCount,
    worker_variable::kMaxRestarts,
    worker_variable::kRunId,
    worker_variable::kUseAgentStore,
    worker_variable::kErrorFile,
    worker_variable::kNcclAsyncErrorHandling,
    worker_variable::kOmpNumThreads,
    worker_variable::kCudaVisibleDevices,
    worker_variable::kPreload,
    worker_variable::kPythonPath,
    worker_variable::kSignalsToHandle,
    worker_variable::kTrackedRun,
    worker_variable::kGeneration,
    worker_variable::kNodeId,
    worker_variable::kLocalAddress,
    worker_variable::kMemoryCheckpoints,
    worker_variable::kStartReason,
    worker_variable::kTargetWorldSize,
    worker_variable::kMemoryPartner,
    worker_variable::kSlot,
    worker_variable::kPage,
};

/// Everything that decides one worker's environment.
struct WorkerPlace {
    JobId job;
    std::string tracked_run = {};
    NodeId node;
    Generation generation;
    Rank rank;
    int world_size = 1;
    int target_world_size = 1;  ///< at least world_size
    LocalRank local_rank;
    int local_world_size = 1;
    int group_rank = 0;
    int group_world_size = 1;
    std::optional<int> memory_partner;  ///< a group rank
    int role_rank = 0;
    int role_world_size = 1;
    std::string role = "default";
    StoreAddress store;
    bool is_store_of_rank_0 = false;  ///< its worker serves it, no agent
    std::string local_address;
    std::string memory_checkpoints;  ///< empty: none, or the agent adds it
    std::string start_reason;        ///< empty: the first generation
    std::string page;                ///< empty: none could be made
    int restart_count = 0;
    int max_restarts = 0;
    std::string error_file;                      ///< empty: none
    std::string signals_to_handle;               ///< names, joined by commas
    bool sets_nccl_async_error_handling = true;  ///< false: inherited from ddprun's environment
    int omp_num_threads = 0;                     ///< 0: inherited, or left unset
    /// The one device that it sees; then it is told to be local rank 0. Unset: as inherited.
    std::optional<std::string> only_device;
    std::string preload;      ///< LD_PRELOAD, whole; empty: as inherited
    std::string python_path;  ///< PYTHONPATH, whole; empty: as inherited
};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// The variables to set over the environment that ddprun itself was started with.
[[nodiscard]] Environment worker_environment(const WorkerPlace& place);

}  // namespace ddprun
