// Kernels are registered when a library is loaded, and cannot run: a launch ends the process with
// the name of the kernel. The operators in operators/ launch none.

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/fake_gpu/cudart/errors.hpp"
#include "tests/fake_gpu/machine/settings.hpp"

namespace {

/// The kernels' names, by the address of the kernel's function on the host.
struct Kernels {
    std::mutex mutex;
    std::unordered_map<const void*, std::string> names;
};

Kernels& kernels() {
    // The object is never destroyed: libraries are loaded and unloaded outside of main(), too.
    static Kernels& created = *std::make_unique<Kernels>().release();
    return created;
}

struct Launch {
    dim3 grid;
    dim3 block;
    std::size_t shared_bytes;
    cudaStream_t stream;
};
thread_local std::vector<Launch> launches;

[[noreturn]] void refuse_launch(const std::string& name) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> readable(
        abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
    fake_gpu::give_up("a kernel is launched: " + (readable ? readable.get() : name));
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* /*binary*/) {
    static void* handle = nullptr;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}

void __cudaUnregisterFatBinary(void** /*handle*/) {}

char __cudaInitModule(void** /*handle*/) {
    return 1;
}

void __cudaRegisterVar(void** /*handle*/, char* /*host*/, char* /*device*/, const char* /*name*/,
                       int /*is_external*/, std::size_t /*bytes*/, int /*is_constant*/,
                       int /*is_global*/) {}

void __cudaRegisterFunction(void** /*handle*/, const char* host, char* /*device*/, const char* name,
                            int /*thread_limit*/, uint3* /*thread*/, uint3* /*block*/,
                            dim3* /*block_size*/, dim3* /*grid_size*/, int* /*warp_size*/) {
    const std::lock_guard lock(kernels().mutex);
    kernels().names[host] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                     CUstream_st* stream) {
    launches.push_back(
        {.grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                       void* stream) {
    const Launch launch = launches.back();
    launches.pop_back();
    *grid = launch.grid;
    *block = launch.block;
    *shared_bytes = launch.shared_bytes;
    *static_cast<cudaStream_t*>(stream) = launch.stream;
    return cudaSuccess;
}

/// A kernel's handle is the address of its name.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    const std::lock_guard lock(kernels().mutex);
    const auto found = kernels().names.find(host);
    if (found == kernels().names.end()) {
        return fake_gpu::fail(cudaErrorInvalidDeviceFunction);
    }
    *kernel = reinterpret_cast<cudaKernel_t>(&found->second);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 /*grid*/, dim3 /*block*/,
                               void** /*arguments*/, std::size_t /*shared_bytes*/,
                               cudaStream_t /*stream*/) {
    refuse_launch(*reinterpret_cast<const std::string*>(kernel));
}

cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
    cudaKernel_t kernel = nullptr;
    const cudaError_t error = __cudaGetKernel(&kernel, host);
    return error != cudaSuccess
               ? error
               : __cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* launch, const void* host,
                                void** arguments) {
    return cudaLaunchKernel(host, launch->gridDim, launch->blockDim, arguments,
                            launch->dynamicSmemBytes, launch->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*function*/) {
    constexpr int kVersion = 90;  // 9.0
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    attributes->numRegs = 32;
    attributes->binaryVersion = kVersion;
    attributes->ptxVersion = kVersion;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* /*function*/, cudaFuncAttribute /*attribute*/,
                                 int /*value*/) {
    return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t /*kernel*/,
                                            cudaFuncAttribute /*attribute*/, int /*value*/,
                                            int /*device*/) {
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count,
                                                                   const void* /*function*/,
                                                                   int /*block_size*/,
                                                                   std::size_t /*shared_bytes*/,
                                                                   unsigned /*flags*/) {
    *count = 2;
    return cudaSuccess;
}
}
