#include "tests/fake_gpu/cudart/memory.hpp"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "tests/fake_gpu/cudart/devices.hpp"
#include "tests/fake_gpu/cudart/errors.hpp"
#include "tests/fake_gpu/cudart/streams.hpp"
#include "tests/fake_gpu/machine/ledger.hpp"
#include "tests/fake_gpu/machine/poison.hpp"
#include "tests/fake_gpu/machine/settings.hpp"

namespace fake_gpu {

namespace {

struct Blocks {
    std::mutex mutex;
    std::map<std::uintptr_t, Block> by_start;
};

Blocks& blocks() {
    // The object is never destroyed: threads of streams outlive main().
    static Blocks& created = *std::make_unique<Blocks>().release();
    return created;
}

std::uintptr_t number_of(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address);
}

void add(const Block& block) {
    const std::lock_guard lock(blocks().mutex);
    blocks().by_start[number_of(block.start)] = block;
}

std::optional<Block> remove(void* start) {
    const std::lock_guard lock(blocks().mutex);
    const auto found = blocks().by_start.extract(number_of(start));
    return found.empty() ? std::nullopt : std::optional(found.mapped());
}

cudaError_t allocate(void** start, std::size_t bytes, bool is_on_host) {
    constexpr std::size_t kPage = 4096;
    *start = nullptr;
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (!is_visible(current_device())) {
        return fail(cudaErrorNoDevice);
    }
    const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
    make_context(gpu_of(current_device()));  // pinned memory needs one, too
    if (!is_on_host && !reserve_memory(gpu_of(current_device()), rounded)) {
        return fail(cudaErrorMemoryAllocation);
    }
    void* const mapped =
        mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        return fail(cudaErrorMemoryAllocation);
    }
    if (!is_on_host && settings().is_memory_poisoned) {
        std::memset(mapped, kPoison, rounded);
    }
    add({.start = mapped, .bytes = rounded, .device = current_device(), .is_on_host = is_on_host});
    *start = mapped;
    return unless_broken();
}

/// Frees the block after a wait for its device, as CUDA does: no task uses the block any more.
cudaError_t free_block(void* start) {
    if (start == nullptr) {
        return cudaSuccess;
    }
    if (const std::optional<Block> used = block_at(start)) {
        wait_for_all_streams_of(used->device);
    }
    const std::optional<Block> block = remove(start);
    if (!block) {
        return fail(cudaErrorInvalidValue);
    }
    if (!block->is_on_host) {
        release_memory(gpu_of(block->device), block->bytes);
    }
    (void)munmap(start, block->bytes);
    return unless_broken();
}

}  // namespace

std::optional<Block> block_at(const void* address) {
    const std::lock_guard lock(blocks().mutex);
    auto behind = blocks().by_start.upper_bound(number_of(address));
    if (behind == blocks().by_start.begin()) {
        return std::nullopt;
    }
    const Block& block = std::prev(behind)->second;
    const bool is_within = number_of(address) < number_of(block.start) + block.bytes;
    return is_within ? std::optional(block) : std::nullopt;
}

}  // namespace fake_gpu

extern "C" {

cudaError_t cudaMalloc(void** start, std::size_t bytes) {
    constexpr bool kIsOnHost = false;
    return fake_gpu::allocate(start, bytes, kIsOnHost);
}

cudaError_t cudaFree(void* start) {
    return fake_gpu::free_block(start);
}

cudaError_t cudaHostAlloc(void** start, std::size_t bytes, unsigned /*flags*/) {
    constexpr bool kIsOnHost = true;
    return fake_gpu::allocate(start, bytes, kIsOnHost);
}

cudaError_t cudaFreeHost(void* start) {
    return fake_gpu::free_block(start);
}

cudaError_t cudaHostRegister(void* start, std::size_t bytes, unsigned /*flags*/) {
    fake_gpu::add({.start = start,
                   .bytes = bytes,
                   .device = fake_gpu::current_device(),
                   .is_on_host = true,
                   .is_registered = true});
    return fake_gpu::unless_broken();
}

cudaError_t cudaHostUnregister(void* start) {
    return fake_gpu::remove(start) ? cudaSuccess : fake_gpu::fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
    if (!fake_gpu::is_visible(fake_gpu::current_device())) {
        return fake_gpu::fail(cudaErrorNoDevice);
    }
    *total = fake_gpu::settings().bytes_of_gpu;
    const std::size_t used = fake_gpu::bytes_in_use(fake_gpu::gpu_of(fake_gpu::current_device()));
    *free_bytes = used < *total ? *total - used : 0;
    return fake_gpu::unless_broken();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    const auto block = fake_gpu::block_at(address);
    void* const same = const_cast<void*>(address);
    *attributes = {};
    attributes->device = block ? block->device : -1;
    attributes->devicePointer = block ? same : nullptr;
    attributes->hostPointer = block && !block->is_on_host ? nullptr : same;
    attributes->type = !block              ? cudaMemoryTypeUnregistered
                       : block->is_on_host ? cudaMemoryTypeHost
                                           : cudaMemoryTypeDevice;
    return cudaSuccess;
}
}
