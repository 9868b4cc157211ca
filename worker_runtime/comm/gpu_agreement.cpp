#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/types.h>

#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/comm/call_within.hpp"
#include "worker_runtime/comm/exception_text.hpp"

namespace ddprun::worker {

namespace {

constexpr std::size_t kHostBytes = 256;
constexpr std::size_t kUuidBytes = 48;

std::string read_text(const char* bytes, std::size_t size) {
    return {bytes, std::find(bytes, bytes + size, '\0')};
}

torch::Device gpu_at(int gpu) {
    return {torch::kCUDA, static_cast<c10::DeviceIndex>(gpu)};
}

}  // namespace

Result<bool> agree_on_gpus(ProcessGroup group, const RankGpus& mine, bool is_sharing_allowed) {
    const auto most_gpus = static_cast<std::size_t>(RuntimeLimits{}.gpus_per_rank_max);
    torch::Tensor told = torch::zeros(
        {static_cast<std::int64_t>(kHostBytes + kUuidBytes * most_gpus)}, torch::kInt8);
    char* const bytes = static_cast<char*>(told.data_ptr());
    std::copy_n(mine.host.data(), std::min(mine.host.size(), kHostBytes), bytes);
    for (std::size_t i = 0; i < mine.uuids.size(); ++i) {
        std::copy_n(mine.uuids[i].data(), std::min(mine.uuids[i].size(), kUuidBytes),
                    bytes + kHostBytes + i * kUuidBytes);
    }
    const Result<torch::Tensor> all = group.all_gather(told);
    if (!all) {
        return all.error();
    }
    std::vector<RankGpus> by_rank;
    for (std::int64_t rank = 0; rank < all->size(0); ++rank) {
        const auto* const at = static_cast<const char*>((*all)[rank].const_data_ptr());
        RankGpus& there = by_rank.emplace_back(RankGpus{.host = read_text(at, kHostBytes)});
        for (std::size_t i = 0; i < most_gpus; ++i) {
            std::string uuid = read_text(at + kHostBytes + i * kUuidBytes, kUuidBytes);
            if (!uuid.empty()) {
                there.uuids.push_back(std::move(uuid));
            }
        }
    }
    Result<bool> is_shared = are_gpus_shared(by_rank, is_sharing_allowed);
    if (!is_shared) {
        (void)group.finish();
    }
    return is_shared;
}

void use_engine(c10d::ProcessGroup& group, Loss& loss, torch::DeviceType device,
                c10d::ProcessGroup::BackendType type,
                const c10::intrusive_ptr<c10d::Backend>& engine) {
    group.setBackend(device, type, engine);
    loss.abort_when_lost(engine);
}

void connect_gpus(c10d::ProcessGroup& group, Loss& loss,
                  const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place) {
    using BackendType = c10d::ProcessGroup::BackendType;
    if (place.is_gpu_shared) {
        group.setBackend(torch::kCUDA, BackendType::GLOO, group.getBackend(torch::kCPU));
        return;
    }
    // setBackend() gives the backend the group's device, whatever it was bound to before. NCCL's
    // engine refuses tensors on another GPU than the one that it is bound to.
    if (place.gpus.size() == 1) {
        group.setBoundDeviceId(gpu_at(place.gpus.front()));
    }
    try {
        const c10::intrusive_ptr<c10d::Backend> nccl = make_nccl(
            c10::make_intrusive<c10d::PrefixStore>("nccl", store), place, group.getGroupName());
        for (const int gpu : place.gpus) {
            call_within(place.join_timeout, loss, kNotConnected,
                        [nccl, gpu] { nccl->eagerConnectSingleDevice(gpu_at(gpu)); });
        }
        use_engine(group, loss, torch::kCUDA, BackendType::NCCL, nccl);
        group.setDefaultBackend(BackendType::NCCL);
    } catch (const std::exception& failure) {
        throw std::runtime_error(
            fmt::format("NCCL does not connect GPU {}: {}; NCCL_DEBUG=INFO says more on stdout",
                        fmt::join(place.gpus, ", "), all_lines(failure)));
    }
}

}  // namespace ddprun::worker
