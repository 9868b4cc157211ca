#pragma once

/// For the operators, which are a library of their own: this process has just computed on the
/// device. CUDA has no such function.
extern "C" void cudaFakeGpuNoteWork(int device);
