#include <stdexcept>

#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "worker_runtime/torch/backends.hpp"

namespace ddprun::worker {

std::optional<int> gpu_of(int local_rank) {
    const int count = c10::cuda::device_count();
    if (count <= 1) {
        return count == 0 ? std::nullopt : std::optional(0);
    }
    if (local_rank >= count) {
        throw std::runtime_error(fmt::format(
            "local rank {} has no GPU: this node shows {}; start at most that many workers on it",
            local_rank, count));
    }
    return local_rank;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendPlace& place) {
    const auto gpu = static_cast<c10::DeviceIndex>(place.gpu);
    c10::cuda::set_device(gpu);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = place.timeout;
    auto backend =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, place.rank, place.world_size, options);
    backend->setBoundDeviceId(at::Device(at::kCUDA, gpu));
    return backend;
}

}  // namespace ddprun::worker
