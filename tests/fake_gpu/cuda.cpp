// libcuda.so.1: the calls that LibTorch makes past the runtime.

#include <cuda.h>

#include <cstddef>

#include "tests/fake_gpu/machine/gpus.hpp"
#include "tests/fake_gpu/machine/ledger.hpp"

namespace {

bool has(int device) {
    return device >= 0 && device < static_cast<int>(fake_gpu::visible_gpus().size());
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned /*flags*/) {
    return has(0) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDeviceGetCount(int* count) {
    *count = static_cast<int>(fake_gpu::visible_gpus().size());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return has(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDriverGetVersion(int* version) {
    *version = fake_gpu::kCudaVersion;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
    *flags = 0;
    if (!has(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const int gpu = fake_gpu::visible_gpus().at(static_cast<std::size_t>(device));
    *is_active = fake_gpu::has_context(gpu) ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult /*error*/, const char** text) {
    *text = "an error of the fake GPU's driver";
    return CUDA_SUCCESS;
}
}
