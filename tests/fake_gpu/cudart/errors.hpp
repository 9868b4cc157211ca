#pragma once

#include <cuda_runtime_api.h>

namespace fake_gpu {

/// Keeps `code` for cudaGetLastError() of this thread, and returns it.
cudaError_t fail(cudaError_t code);

[[nodiscard]] bool is_broken();

/// Returns success, or the error of a broken GPU.
[[nodiscard]] cudaError_t unless_broken();

}  // namespace fake_gpu

/// Breaks the GPU as a kernel does that reads a wild address: every later call of this process
/// fails, and no stream runs a task any more. The fake NCCL, a library of its own, calls this
/// function, too; CUDA does not have it.
extern "C" void cudaFakeGpuBreak();
