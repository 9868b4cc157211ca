#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// LibTorch's operators for CUDA, on the fake GPU.
namespace fake_gpu {

/// Runs the CPU's kernel of `op` on the memory of the CUDA tensors, which is the host's, once the
/// current stream has done what is before. Random numbers are drawn from CUDA's generator: its seed
/// and offset decide them, and the CPU's generator stays as it is.
void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Ends the process with the name of `op`: CPUs have no kernel of it.
void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack);

/// copy_(): CUDA's own where the bytes stay the same, for its order among streams is what tests are
/// about; else the CPU's, which converts.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking);

/// From the first call on, and if Settings::is_memory_poisoned, LibTorch's allocator overwrites the
/// memory of a tensor when it takes it back, in the order of its stream: a use after that is seen.
/// Once there is a CUDA tensor: the allocator does not take it before.
void poison_freed_memory();

}  // namespace fake_gpu
