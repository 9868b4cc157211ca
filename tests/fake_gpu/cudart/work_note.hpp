#pragma once

/// Notes that this process has just computed on the device. The operators, a library of their own,
/// call this function; CUDA does not have it.
extern "C" void cudaFakeGpuNoteWork(int device);
