#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/network_interface.hpp"
#include "base/result.hpp"

/// Decisions about GPUs and their network before a GPU is used. Pure.
namespace ddprun::worker {

/// "GPU-" and 32 digits, as nvidia-smi writes it.
[[nodiscard]] std::string gpu_uuid_text(const std::array<std::uint8_t, 16>& uuid);

/// The host and the GPUs of one rank.
struct RankGpus {
    std::string host;
    std::vector<std::string> uuids;  ///< empty: it has none

    bool operator==(const RankGpus&) const = default;
};

/// Whether two ranks have one GPU; `by_rank` is all of them. An Error where they do and may not,
/// and where some have more than others: it names the first two such ranks, their hosts and GPUs.
[[nodiscard]] Result<bool> are_gpus_shared(const std::vector<RankGpus>& by_rank,
                                           bool is_sharing_allowed);

/// The first of the `per_rank` GPUs, of `visible`, that the worker with this local rank has: the
/// ranks' GPUs lie side by side, and a worker that sees no more than its own has those. Nothing:
/// too few are visible.
[[nodiscard]] std::optional<int> first_gpu(int local_rank, int per_rank, int visible);

struct NcclVersion {
    int major = 0;
    int minor = 0;
    int patch = 0;
};

/// From what torch::cuda::nccl::version() returns.
[[nodiscard]] NcclVersion unpack_nccl_version(std::uint64_t packed);

/// An Error unless major and minor are the same: structures of NCCL's are handed over by value, and
/// grow with them.
[[nodiscard]] Result<void> compare_nccl(const NcclVersion& of_headers, const NcclVersion& of_torch);

/// NCCL_SOCKET_IFNAME for a node with this numeric address: "=" and the one interface that has it.
/// Returns none if no interface has it: NCCL then chooses, as it would have.
[[nodiscard]] std::optional<std::string> nccl_interface(
    const std::string& address, const std::vector<NetworkInterface>& interfaces);

}  // namespace ddprun::worker
