#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/types.h>

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

}  // namespace

Result<bool> agree_on_gpus(ProcessGroup group, const RankGpu& mine, bool is_sharing_allowed) {
    torch::Tensor told = torch::zeros({kHostBytes + kUuidBytes}, torch::kInt8);
    char* const bytes = static_cast<char*>(told.data_ptr());
    std::copy_n(mine.host.data(), std::min(mine.host.size(), kHostBytes), bytes);
    std::copy_n(mine.uuid.data(), std::min(mine.uuid.size(), kUuidBytes), bytes + kHostBytes);
    const Result<torch::Tensor> all = group.all_gather(told);
    if (!all) {
        return all.error();
    }
    std::vector<RankGpu> by_rank;
    for (std::int64_t rank = 0; rank < all->size(0); ++rank) {
        const auto* const at = static_cast<const char*>((*all)[rank].const_data_ptr());
        by_rank.push_back(
            {.host = read_text(at, kHostBytes), .uuid = read_text(at + kHostBytes, kUuidBytes)});
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

void connect_gpu(c10d::ProcessGroup& group, Loss& loss,
                 const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place) {
    using BackendType = c10d::ProcessGroup::BackendType;
    const torch::Device gpu(torch::kCUDA, static_cast<c10::DeviceIndex>(place.gpu));
    if (place.is_gpu_shared) {
        group.setBackend(torch::kCUDA, BackendType::GLOO, group.getBackend(torch::kCPU));
        return;
    }
    // setBackend() gives the backend the group's device, whatever it was bound to before.
    group.setBoundDeviceId(gpu);
    try {
        const c10::intrusive_ptr<c10d::Backend> nccl = make_nccl(
            c10::make_intrusive<c10d::PrefixStore>("nccl", store), place, group.getGroupName());
        call_within(place.join_timeout, loss, kNotConnected,
                    [nccl, gpu] { nccl->eagerConnectSingleDevice(gpu); });
        use_engine(group, loss, torch::kCUDA, BackendType::NCCL, nccl);
        group.setDefaultBackend(BackendType::NCCL);
    } catch (const std::exception& failure) {
        throw std::runtime_error(
            fmt::format("NCCL does not connect GPU {}: {}; NCCL_DEBUG=INFO says more on stdout",
                        place.gpu, all_lines(failure)));
    }
}

}  // namespace ddprun::worker
