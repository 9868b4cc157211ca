#include "tests/fake_gpu/cudart/devices.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>

#include "tests/fake_gpu/cudart/errors.hpp"
#include "tests/fake_gpu/cudart/streams.hpp"
#include "tests/fake_gpu/cudart/work_note.hpp"
#include "tests/fake_gpu/machine/gpus.hpp"
#include "tests/fake_gpu/machine/ledger.hpp"
#include "tests/fake_gpu/machine/settings.hpp"

namespace fake_gpu {

namespace {

constexpr const char* kOperators = "libddprun_fake_gpu_operators.so";
thread_local int current = 0;

/// Returns the properties of a Hopper with few processors: those that LibTorch reads.
cudaDeviceProp properties_of(int gpu) {
    cudaDeviceProp made{};
    (void)std::snprintf(made.name, sizeof made.name, "%s", kGpuName);
    const Uuid uuid = uuid_of(gpu);
    std::memcpy(made.uuid.bytes, uuid.data(), uuid.size());
    made.major = 9;
    made.minor = 0;
    made.totalGlobalMem = settings().bytes_of_gpu;
    made.totalConstMem = 64 << 10;
    made.l2CacheSize = 50 << 20;
    made.sharedMemPerBlock = 48 << 10;
    made.sharedMemPerBlockOptin = 227 << 10;
    made.sharedMemPerMultiprocessor = 228 << 10;
    made.regsPerBlock = 65536;
    made.regsPerMultiprocessor = 65536;
    made.warpSize = 32;
    made.multiProcessorCount = 16;
    made.maxBlocksPerMultiProcessor = 32;
    made.maxThreadsPerMultiProcessor = 2048;
    made.maxThreadsPerBlock = 1024;
    made.maxThreadsDim[0] = made.maxThreadsDim[1] = 1024;
    made.maxThreadsDim[2] = 64;
    made.maxGridSize[0] = 0x7fffffff;
    made.maxGridSize[1] = made.maxGridSize[2] = 65535;
    made.textureAlignment = 512;
    made.asyncEngineCount = 3;
    made.canMapHostMemory = 1;
    made.concurrentKernels = 1;
    made.hostRegisterSupported = 1;
    made.managedMemory = 1;
    made.streamPrioritiesSupported = 1;
    made.unifiedAddressing = 1;
    made.pciBusID = static_cast<int>(pci_bus_of(gpu));
    return made;
}

/// LibTorch's operators for CUDA have their kernels in libtorch_cuda.so, which cannot run. A
/// library beside this one registers others, before the first tensor is made.
void load_operators() {
    static std::once_flag once;
    std::call_once(once, [] {
        if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD) == nullptr) {
            return;
        }
        Dl_info own{};
        (void)dladdr(reinterpret_cast<const void*>(&load_operators), &own);
        const auto path = std::filesystem::path(own.dli_fname).replace_filename(kOperators);
        if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
            give_up(dlerror());
        }
    });
}

cudaError_t no_such_device() {
    return fail(visible_gpus().empty() ? cudaErrorNoDevice : cudaErrorInvalidDevice);
}

}  // namespace

int current_device() {
    return current;
}

bool is_visible(int device) {
    return device >= 0 && device < static_cast<int>(visible_gpus().size());
}

int gpu_of(int device) {
    return visible_gpus().at(static_cast<std::size_t>(device));
}

}  // namespace fake_gpu

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = static_cast<int>(fake_gpu::visible_gpus().size());
    if (*count == 0) {
        return fake_gpu::fail(cudaErrorNoDevice);
    }
    fake_gpu::load_operators();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
    if (fake_gpu::visible_gpus().empty()) {
        return fake_gpu::no_such_device();
    }
    *device = fake_gpu::current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (!fake_gpu::is_visible(device)) {
        return fake_gpu::no_such_device();
    }
    fake_gpu::load_operators();
    fake_gpu::current = device;
    fake_gpu::make_context(fake_gpu::gpu_of(device));
    return fake_gpu::unless_broken();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (!fake_gpu::is_visible(device)) {
        return fake_gpu::no_such_device();
    }
    *properties = fake_gpu::properties_of(fake_gpu::gpu_of(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) {
        return error;
    }
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor:
            *value = properties.major;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *value = properties.minor;
            break;
        case cudaDevAttrMultiProcessorCount:
            *value = properties.multiProcessorCount;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = static_cast<int>(properties.sharedMemPerBlockOptin);
            break;
        case cudaDevAttrPciBusId:
            *value = properties.pciBusID;
            break;
        default:
            *value = 0;  // it has no such feature
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    if (!fake_gpu::is_visible(device)) {
        return fake_gpu::no_such_device();
    }
    (void)std::snprintf(text, static_cast<std::size_t>(size), "0000:%02X:00.0",
                        fake_gpu::pci_bus_of(fake_gpu::gpu_of(device)));
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int /*device*/, int /*peer*/) {
    *can_access = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int /*peer*/, unsigned /*flags*/) {
    return fake_gpu::fail(cudaErrorPeerAccessUnsupported);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    constexpr int kGreatest = -5;
    if (least != nullptr) {
        *least = 0;
    }
    if (greatest != nullptr) {
        *greatest = kGreatest;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    fake_gpu::wait_for_all_streams_of(fake_gpu::current_device());
    return fake_gpu::unless_broken();
}

void cudaFakeGpuNoteWork(int device) {
    fake_gpu::note_work(fake_gpu::gpu_of(device));
}

cudaError_t cudaDriverGetVersion(int* version) {
    *version = fake_gpu::kCudaVersion;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = fake_gpu::kCudaVersion;
    return cudaSuccess;
}
}
