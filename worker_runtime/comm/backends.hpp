#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/result.hpp"
#include "worker_runtime/comm/peer_watch.hpp"

/// The engines behind a ProcessGroup. They throw what c10d throws.
namespace ddprun::worker {

struct BackendPlace {
    int rank = 0;
    int world_size = 1;
    int gpu = -1;                ///< none below 0
    bool is_gpu_shared = false;  ///< with another rank: Gloo carries tensors there, NCCL cannot
    std::string local_address;   ///< to bind to; empty: c10d guesses from the host name
    std::chrono::milliseconds join_timeout{};
    std::chrono::milliseconds timeout{};
};

struct Gloo {
    /// Its abort() cuts the connections, which c10d's own does not.
    c10::intrusive_ptr<c10d::Backend> backend;
    GroupConnections connections;
};

/// Connects to all others; the ranks tell each other the addresses of their ends.
[[nodiscard]] Gloo make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                             const BackendPlace& place);

/// The GPU of the worker with this local rank: the only one it sees (each worker has its own
/// CUDA_VISIBLE_DEVICES), else that of the same number. None where this program was built without
/// NCCL, or no GPU is seen; throws when there are fewer than workers.
[[nodiscard]] std::optional<int> gpu_of(int local_rank);

/// Makes this GPU the current device. Its UUID.
[[nodiscard]] std::string take_gpu(int gpu);

/// An Error unless this program and its LibTorch were compiled for the same NCCL.
[[nodiscard]] Result<void> check_nccl();

/// For the current device, and not connected yet: eagerConnectSingleDevice() does that. Points NCCL
/// at the interface that has `place.local_address`, unless the environment says
/// NCCL_SOCKET_IFNAME.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place);

/// Has `engine` carry the tensors on `device`, until `loss` aborts it.
void use_engine(c10d::ProcessGroup& group, Loss& loss, torch::DeviceType device,
                c10d::ProcessGroup::BackendType type,
                const c10::intrusive_ptr<c10d::Backend>& engine);

/// Binds `group`, whose Gloo is connected, to `place.gpu` and connects all ranks for tensors there.
/// The default from then on, unless that is Gloo.
void connect_gpu(c10d::ProcessGroup& group, Loss& loss,
                 const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place);

}  // namespace ddprun::worker
