#include "tests/fake_gpu/machine/poison.hpp"

#include <cuda_runtime_api.h>

#include <mutex>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "tests/fake_gpu/machine/settings.hpp"
#include "tests/fake_gpu/operators/operators.hpp"

namespace fake_gpu {

namespace {

using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;

void poison(const Entry& entry) {
    if (entry.action_ == Entry::FREE_COMPLETED) {
        const c10::cuda::CUDAGuard guard(entry.device_);
        (void)cudaMemsetAsync(reinterpret_cast<void*>(entry.addr_), kPoison, entry.size_,
                              static_cast<cudaStream_t>(entry.stream_));
    }
}

}  // namespace

void poison_freed_memory() {
    static std::once_flag once;
    std::call_once(once, [] {
        if (settings().is_memory_poisoned) {
            c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(poison);
        }
    });
}

}  // namespace fake_gpu
