// A copy runs in the order of its stream. CUDA documents two exceptions. A call that copies from
// pageable memory has read that memory when the call returns; a large copy first waits for its
// stream. A call that copies to pageable memory returns when the copy is done.

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/fake_gpu/cudart/errors.hpp"
#include "tests/fake_gpu/cudart/memory.hpp"
#include "tests/fake_gpu/cudart/streams.hpp"

namespace {

using fake_gpu::Runner;

bool is_pageable(const void* address) {
    return !fake_gpu::block_at(address);
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
    constexpr std::size_t kStagedAtMost = 64 << 10;
    const bool is_from_pageable = is_pageable(from);
    if (is_from_pageable && bytes <= kStagedAtMost) {
        const auto* const start = static_cast<const char*>(from);
        const auto staged = std::make_shared<std::vector<char>>(start, start + bytes);
        fake_gpu::submit(stream, Runner::Anybody, [=] { std::memcpy(to, staged->data(), bytes); });
    } else {
        fake_gpu::submit(stream, Runner::Anybody, [=] { std::memmove(to, from, bytes); });
    }
    if (is_pageable(to) || (is_from_pageable && bytes > kStagedAtMost)) {
        fake_gpu::wait_for(stream);
    }
    return fake_gpu::unless_broken();
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    (void)cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    fake_gpu::wait_for(nullptr);
    return fake_gpu::unless_broken();
}

cudaError_t cudaMemcpyPeerAsync(void* to, int /*to_device*/, const void* from, int /*from_device*/,
                                std::size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
    fake_gpu::submit(stream, Runner::Anybody, [=] { std::memset(to, value, bytes); });
    return fake_gpu::unless_broken();
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, nullptr);
}
}
