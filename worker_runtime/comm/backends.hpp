#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/result.hpp"
#include "worker_runtime/comm/peer_watch.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/env/gpu_place.hpp"

/// The engines behind a ProcessGroup. They throw what c10d throws.
namespace ddprun::worker {

struct BackendPlace {
    int rank = 0;
    int world_size = 1;
    std::vector<int> gpus;       ///< empty: none
    bool is_gpu_shared = false;  ///< with another rank: Gloo carries tensors there, NCCL cannot
    std::string local_address;   ///< to bind to; empty: c10d guesses from the host name
    std::chrono::milliseconds join_timeout{};
    std::chrono::milliseconds timeout{};
};

/// The error at the end of join_timeout.
constexpr const char* kNotConnected = "not all ranks are connected";

struct Gloo {
    /// Its abort() cuts the connections, which c10d's own does not.
    c10::intrusive_ptr<c10d::Backend> backend;
    GroupConnections connections;
};

/// Connects to all others, with join_timeout as the time-out of its collectives; the ranks send
/// each other the addresses of their ends. Throws after `place.join_timeout`, and when `loss` is
/// told of a lost rank. Gloo by itself waits five times as long for a rank that has told its
/// address and died.
[[nodiscard]] Gloo make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                             const BackendPlace& place, Loss& loss);

struct Gpu {
    int number = 0;
    std::string uuid;
};

/// The `per_rank` GPUs of the worker with this local rank, from first_gpu() on; the first becomes
/// the current device. Returns none if this program was built without NCCL or sees no GPU; throws
/// when too few are visible. An Error unless this program and its LibTorch were compiled for the
/// same NCCL.
[[nodiscard]] Result<std::vector<Gpu>> take_gpus(int local_rank, int per_rank);

/// `backend`, an engine for tensors on CPUs, with one difference: what it has begun fails once
/// `loss` is told of a lost rank, for every waiting caller, also below c10d; all but c10d's
/// reduce_scatter. Later calls throw that.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_guarded(
    c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<Loss> loss);

/// Sends all ranks what this one has; are_gpus_shared() of all. The same answer on every rank: an
/// Error of it ends the group in order, so that no rank takes it for a death.
[[nodiscard]] Result<bool> agree_on_gpus(ProcessGroup group, const RankGpus& mine,
                                         bool is_sharing_allowed);

/// Not connected yet: eagerConnectSingleDevice() does that for one GPU after the other. Its own
/// log lines call it `name`. Points NCCL at the interface that has `place.local_address`, unless
/// the environment says NCCL_SOCKET_IFNAME. An error of NCCL or CUDA ends no process unless the
/// environment says TORCH_NCCL_ASYNC_ERROR_HANDLING with another value than torchrun's; for CUDA
/// TORCH_NCCL_RETHROW_CUDA_ERRORS decides, if it is set. Ends when the process does, if it still
/// exists.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place,
    const std::string& name);

/// Has `engine` carry the tensors on `device`, until `loss` aborts it.
void use_engine(c10d::ProcessGroup& group, Loss& loss, torch::DeviceType device,
                c10d::ProcessGroup::BackendType type,
                const c10::intrusive_ptr<c10d::Backend>& engine);

/// Connects all ranks of `group`, whose Gloo is connected, for tensors on `place.gpus`, and binds
/// it to a GPU that is the only one. The default from then on, unless that is Gloo. Throws after
/// `place.join_timeout`, and when a rank is lost: NCCL goes on connecting meanwhile, on a detached
/// thread.
void connect_gpus(c10d::ProcessGroup& group, Loss& loss,
                  const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place);

}  // namespace ddprun::worker
