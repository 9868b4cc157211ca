#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace fake_gpu {

using Task = std::function<void()>;

/// Whether the caller may run a task itself if the stream has nothing to do. A task that waits, or
/// that calls a program's function, must not hold up its caller.
enum class Runner { Anybody, StreamThread };

/// Queues the task behind all earlier tasks of the stream. A null stream is the current device's
/// own. A stream has no thread until a task needs one; with Settings::task_delay every task does.
void submit(cudaStream_t stream, Runner runner, Task task);

/// Waits until the stream has run all its tasks, or the GPU is broken.
void wait_for(cudaStream_t stream);
void wait_for_all_streams_of(int device);

}  // namespace fake_gpu
