#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake_gpu {

/// False also for a zombie, whose memory and connections are gone: kill() would still find it.
[[nodiscard]] bool is_alive(pid_t pid);

/// What one process has of one GPU.
struct Holder {
    pid_t pid = 0;
    std::uint64_t bytes = 0;
    std::uint64_t worked_at_ns = 0;  ///< of CLOCK_MONOTONIC; 0: it has not computed yet
};

/// The living processes that have a context on `gpu`: one file each in Settings::state_folder. The
/// files of dead ones are removed.
[[nodiscard]] std::vector<Holder> holders_of(int gpu);

[[nodiscard]] std::uint64_t bytes_in_use(int gpu);

/// False, and nothing is changed, when `gpu` has not so much left. The first call makes this
/// process's context, which takes memory, too.
[[nodiscard]] bool reserve_memory(int gpu, std::size_t bytes);
void release_memory(int gpu, std::size_t bytes);

/// This process has just computed on `gpu`; waiting is no computing.
void note_work(int gpu);

}  // namespace fake_gpu
