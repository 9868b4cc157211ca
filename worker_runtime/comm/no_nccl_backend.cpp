#include <stdexcept>

#include "worker_runtime/comm/backends.hpp"

namespace ddprun::worker {

Result<std::vector<Gpu>> take_gpus(int /*local_rank*/, int /*per_rank*/) {
    return std::vector<Gpu>();
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                            const BackendPlace& /*place*/,
                                            const std::string& /*name*/) {
    throw std::runtime_error(
        "this program was built without NCCL: build ddprun where CUDA, nccl.h and a LibTorch built "
        "with CUDA are found");
}

}  // namespace ddprun::worker
