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

/// The host and the GPU of one rank.
struct RankGpu {
    std::string host;
    std::string uuid;  ///< of its GPU; empty: none

    bool operator==(const RankGpu&) const = default;
};

/// Whether two ranks have one GPU; `by_rank` is all of them. An Error where they do and may not,
/// and where some have one and others do not: it names the first two such ranks, their hosts and
/// GPUs.
[[nodiscard]] Result<bool> are_gpus_shared(const std::vector<RankGpu>& by_rank,
                                           bool is_sharing_allowed);

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
