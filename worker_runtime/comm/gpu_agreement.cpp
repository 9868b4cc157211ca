#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/types.h>

#include "base/os/signals_blocked.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/comm/exception_text.hpp"

namespace ddprun::worker {

namespace {

constexpr std::size_t kHostBytes = 256;
constexpr std::size_t kUuidBytes = 48;

std::string read_text(const char* bytes, std::size_t size) {
    return {bytes, std::find(bytes, bytes + size, '\0')};
}

/// The outcome of a call on a thread of its own.
struct Attempt {
    std::mutex mutex;
    std::condition_variable changed;  ///< it is over, or a rank is lost
    bool is_over = false;             ///< the call has returned, or failed
    std::exception_ptr failure;
};

/// Calls `connect`, which has no bound of its own. Throws what it throws, what `loss` is told, and
/// after `bound`: then the call goes on, on its thread.
void connect_within(std::chrono::milliseconds bound, Loss& loss, std::function<void()> connect) {
    const auto attempt = std::make_shared<Attempt>();
    {
        const SignalsBlocked blocked;
        std::thread([attempt, connect = std::move(connect)] {
            std::exception_ptr failure;
            try {
                connect();
            } catch (...) {
                failure = std::current_exception();
            }
            const std::lock_guard lock(attempt->mutex);
            attempt->failure = failure;
            attempt->is_over = true;
            attempt->changed.notify_all();
        }).detach();
    }
    const Loss::Guard guard(loss, [attempt] {
        const std::lock_guard lock(attempt->mutex);  // else it may come just before the wait
        attempt->changed.notify_all();
    });
    std::unique_lock lock(attempt->mutex);
    attempt->changed.wait_for(lock, bound, [&] { return attempt->is_over || loss.is_lost(); });
    if (attempt->failure) {
        std::rethrow_exception(attempt->failure);
    }
    if (!attempt->is_over) {
        lock.unlock();
        loss.check();
        throw std::runtime_error(
            fmt::format("not all ranks are connected after {} ms", bound.count()));
    }
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
        connect_within(place.join_timeout, loss,
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
