#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/cuda.h>

#include "worker_runtime/torch/backends.hpp"

namespace ddprun::worker {

bool has_nccl() {
    return torch::cuda::device_count() > 0;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendPlace& place) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = place.timeout;
    auto backend =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, place.rank, place.world_size, options);
    backend->setBoundDeviceId(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank)));
    return backend;
}

}  // namespace ddprun::worker
