#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// LibTorch's operators for CUDA, on the fake GPU.
namespace fake_gpu {

/// Runs the CPU's kernel of `op` on the memory of the CUDA tensors, which is the host's, when the
/// current stream has run its earlier tasks. Random numbers are drawn from CUDA's generator: its
/// seed and offset decide them, and the CPU's generator stays as it is.
void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Ends the process with the name of `op`: CPUs have no kernel of it.
void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack);

/// The kernel of copy_(). When the bytes stay the same, CUDA's own copy runs: tests are about its
/// order among streams. Otherwise the CPU's kernel converts.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking);

/// From the first call on, if Settings::is_memory_poisoned, LibTorch's allocator overwrites a
/// tensor's memory when it takes the memory back, in the order of the tensor's stream. Tests so see
/// a later use. The first call follows the first CUDA tensor: before, the allocator takes no hook.
void poison_freed_memory();

}  // namespace fake_gpu
