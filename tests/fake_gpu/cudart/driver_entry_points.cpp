// The functions of the driver that LibTorch asks the runtime for. One that is not listed here
// answers that the driver does not support it.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <string_view>

#include "tests/fake_gpu/cudart/devices.hpp"
#include "tests/fake_gpu/cudart/memory.hpp"

namespace {

CUresult error_string(CUresult /*error*/, const char** text) {
    *text = "an error of the fake GPU's driver";
    return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
    *device = ordinal;
    return fake_gpu::is_visible(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult device_attribute(int* value, CUdevice_attribute /*attribute*/, CUdevice /*device*/) {
    *value = 0;
    return CUDA_SUCCESS;
}

CUresult address_range(CUdeviceptr* start, std::size_t* bytes, CUdeviceptr address) {
    const auto block = fake_gpu::block_at(reinterpret_cast<const void*>(address));
    if (!block) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (start != nullptr) {
        *start = reinterpret_cast<CUdeviceptr>(block->start);
    }
    if (bytes != nullptr) {
        *bytes = block->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult unsupported() {
    return CUDA_ERROR_NOT_SUPPORTED;
}

struct EntryPoint {
    std::string_view name;
    void* function;
};

void* entry_point(std::string_view name) {
    const std::array points = {
        EntryPoint{"cuGetErrorString", reinterpret_cast<void*>(&error_string)},
        EntryPoint{"cuDeviceGet", reinterpret_cast<void*>(&device_get)},
        EntryPoint{"cuDeviceGetAttribute", reinterpret_cast<void*>(&device_attribute)},
        EntryPoint{"cuMemGetAddressRange", reinterpret_cast<void*>(&address_range)},
    };
    for (const EntryPoint& point : points) {
        if (point.name == name) {
            return point.function;
        }
    }
    return reinterpret_cast<void*>(&unsupported);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* status) {
    *function = entry_point(symbol);
    if (status != nullptr) {
        *status = cudaDriverEntryPointSuccess;
    }
    return cudaSuccess;
}
}
