#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

/// The engines behind a ProcessGroup. They throw what c10d throws.
namespace ddprun::worker {

struct BackendPlace {
    int rank = 0;
    int world_size = 1;
    int local_rank = 0;
    std::string local_address;  ///< to bind to; empty: c10d guesses from the host name
    std::chrono::milliseconds join_timeout{};
    std::chrono::milliseconds timeout{};
};

/// Connects to all others. Its abort() cuts the connections, which c10d's own does not.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place);

/// False where this program was built without NCCL, or the machine has no GPU.
[[nodiscard]] bool has_nccl();

/// The communicator is made at the first collective, on GPU `local_rank`. Throws without
/// has_nccl().
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place);

}  // namespace ddprun::worker
