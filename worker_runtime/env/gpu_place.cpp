#include "worker_runtime/env/gpu_place.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

std::string told(std::size_t rank, const RankGpus& place) {
    return fmt::format("rank {} on host {}", rank, place.host);
}

/// The address's bytes; the same for all spellings of one. Empty: it is none.
std::string bytes_of(std::string address) {
    address.resize(std::min(address.find('%'), address.size()));  // fe80::1%eth0
    std::string bytes(sizeof(in6_addr), '\0');
    if (inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1) {
        return bytes;
    }
    bytes.resize(sizeof(in_addr));
    return inet_pton(AF_INET, address.c_str(), bytes.data()) == 1 ? bytes : std::string();
}

/// An Error unless `rank` has as many GPUs as rank 0.
Result<void> compare_counts(const std::vector<RankGpus>& by_rank, std::size_t rank) {
    const std::size_t here = by_rank[rank].uuids.size();
    const std::size_t first = by_rank[0].uuids.size();
    if (here == first) {
        return {};
    }
    if (here > 0 && first > 0) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{} has {} GPUs, but {} has {}: set "
                                 "ProcessGroupOptions::gpus_per_rank alike on all of them",
                                 told(0, by_rank[0]), first, told(rank, by_rank[rank]), here)};
    }
    const std::size_t with = here > 0 ? rank : 0;
    const std::size_t without = here > 0 ? 0 : rank;
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("{} has the GPU {}, but {} sees none: give every worker one, or use "
                             "Backend::Gloo on all of them",
                             told(with, by_rank[with]), by_rank[with].uuids.front(),
                             told(without, by_rank[without]))};
}

}  // namespace

std::string gpu_uuid_text(const std::array<std::uint8_t, 16>& uuid) {
    std::string text = "GPU";
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        const bool starts_a_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        text += fmt::format("{}{:02x}", starts_a_group ? "-" : "", uuid[i]);
    }
    return text;
}

Result<bool> are_gpus_shared(const std::vector<RankGpus>& by_rank, bool is_sharing_allowed) {
    bool is_shared = false;
    std::map<std::string, std::size_t> first_with;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        if (const Result<void> counts = compare_counts(by_rank, rank); !counts) {
            return counts.error();
        }
        for (const std::string& uuid : by_rank[rank].uuids) {
            const auto [first, is_new] = first_with.emplace(uuid, rank);
            if (is_new) {
                continue;
            }
            is_shared = true;
            if (!is_sharing_allowed) {
                return Error{
                    ErrorCode::InvalidArgument,
                    fmt::format(
                        "{} and {} have the same GPU, {}: start at most one worker for each GPU "
                        "(ddprun --nproc-per-node gpu does), or set "
                        "ProcessGroupOptions::allow_shared_gpus",
                        told(first->second, by_rank[first->second]), told(rank, by_rank[rank]),
                        uuid)};
            }
        }
    }
    return is_shared;
}

std::optional<int> first_gpu(int local_rank, int per_rank, int visible) {
    if (visible == per_rank) {
        return 0;
    }
    const int first = local_rank * per_rank;
    return first + per_rank <= visible ? std::optional(first) : std::nullopt;
}

NcclVersion unpack_nccl_version(std::uint64_t packed) {
    return {.major = static_cast<int>(packed >> 32),
            .minor = static_cast<int>(packed >> 16 & 0xffff),
            .patch = static_cast<int>(packed & 0xffff)};
}

Result<void> compare_nccl(const NcclVersion& of_headers, const NcclVersion& of_torch) {
    if (of_headers.major == of_torch.major && of_headers.minor == of_torch.minor) {
        return {};
    }
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("NCCL cannot be used: this program was compiled with the headers of "
                             "NCCL {}.{}.{}, its LibTorch with those of {}.{}.{}, and the two are "
                             "not laid out alike; build it with the nccl.h of LibTorch's own NCCL "
                             "(the wheel nvidia-nccl beside torch)",
                             of_headers.major, of_headers.minor, of_headers.patch, of_torch.major,
                             of_torch.minor, of_torch.patch)};
}

std::optional<std::string> nccl_interface(const std::string& address,
                                          const std::vector<NetworkInterface>& interfaces) {
    const std::string wanted = bytes_of(address);
    for (const NetworkInterface& interface : interfaces) {
        for (const std::string& one : interface.addresses) {
            if (interface.is_up && !wanted.empty() && bytes_of(one) == wanted) {
                return "=" + interface.name;
            }
        }
    }
    return std::nullopt;
}

}  // namespace ddprun::worker
