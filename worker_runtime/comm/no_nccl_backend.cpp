#include <stdexcept>

#include "worker_runtime/comm/backends.hpp"

namespace ddprun::worker {

std::optional<int> gpu_of(int /*local_rank*/) {
    return std::nullopt;
}

std::string take_gpu(int /*gpu*/) {
    return {};
}

Result<void> check_nccl() {
    return {};
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                            const BackendPlace& /*place*/) {
    throw std::runtime_error(
        "this program was built without NCCL: build ddprun where CUDA, nccl.h and a LibTorch built "
        "with CUDA are found");
}

}  // namespace ddprun::worker
