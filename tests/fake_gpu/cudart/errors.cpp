#include "tests/fake_gpu/cudart/errors.hpp"

#include <array>
#include <atomic>

namespace fake_gpu {

namespace {

struct Text {
    cudaError_t code;
    const char* name;
    const char* sentence;
};

constexpr Text kOther = {cudaErrorUnknown, "cudaErrorUnknown", "an error of the fake GPU"};
constexpr std::array kTexts = {
    Text{cudaSuccess, "cudaSuccess", "no error"},
    Text{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    Text{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    Text{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    Text{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    Text{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    Text{cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
         "an illegal memory access was encountered"},
    Text{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    Text{cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
         "peer access is not supported between these two devices"},
};

std::atomic<bool> broken = false;
thread_local cudaError_t last_error = cudaSuccess;

const Text& text_of(cudaError_t code) {
    for (const Text& text : kTexts) {
        if (text.code == code) {
            return text;
        }
    }
    return kOther;
}

}  // namespace

cudaError_t fail(cudaError_t code) {
    last_error = code;
    return code;
}

bool is_broken() {
    return broken;
}

cudaError_t unless_broken() {
    return is_broken() ? fail(cudaErrorIllegalAddress) : cudaSuccess;
}

}  // namespace fake_gpu

extern "C" {

void cudaFakeGpuBreak() {
    fake_gpu::broken = true;
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = cudaPeekAtLastError();
    fake_gpu::last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError() {
    return fake_gpu::is_broken() ? cudaErrorIllegalAddress : fake_gpu::last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
    return fake_gpu::text_of(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
    return fake_gpu::text_of(error).sentence;
}
}
