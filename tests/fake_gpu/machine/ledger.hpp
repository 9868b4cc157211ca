#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake_gpu {

/// Returns false also for a zombie: its memory and connections are gone, and kill() still finds it.
[[nodiscard]] bool is_alive(pid_t pid);

/// The memory and the last computation of one process on one GPU.
struct Holder {
    pid_t pid = 0;
    std::uint64_t bytes = 0;
    std::uint64_t worked_at_ns = 0;  ///< of CLOCK_MONOTONIC; 0: it has not computed yet
};

/// Returns the living processes that have a context on `gpu`. Each has a file in
/// Settings::state_folder; the files of dead processes are removed.
[[nodiscard]] std::vector<Holder> holders_of(int gpu);

[[nodiscard]] std::uint64_t bytes_in_use(int gpu);

/// Makes this process's context on `gpu`, which takes memory, unless it has one.
void make_context(int gpu);
/// Whether this process has a context on `gpu`, made by any of the fake's libraries.
[[nodiscard]] bool has_context(int gpu);

/// Returns false and changes nothing when `gpu` has less memory left. Makes the context, too.
[[nodiscard]] bool reserve_memory(int gpu, std::size_t bytes);
void release_memory(int gpu, std::size_t bytes);

/// Notes that this process has just computed on `gpu`. Waiting does not count as computing.
void note_work(int gpu);

}  // namespace fake_gpu
