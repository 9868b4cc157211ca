#pragma once

#include <chrono>
#include <cstddef>
#include <string>

/// The machine that the fake libraries show: its settings, its GPUs, its processes.
namespace fake_gpu {

/// Every environment variable of the fake GPU. The README of tests/fake_gpu has the table.
struct Settings {
    int gpu_count = 0;
    std::size_t bytes_of_gpu = 0;
    std::string node;          ///< GPUs of two nodes have different UUIDs
    std::string state_folder;  ///< what processes share: memory in use, rings of communicators
    std::chrono::microseconds task_delay{};  ///< before each task of a stream
    bool is_memory_poisoned = false;         ///< fresh memory, and memory that a tensor gave back
    bool is_traced = false;                  ///< each operator writes a line to stderr
    bool is_death_noticed = false;           ///< a connection over a network ends with its peer
    std::string nccl_faults;                 ///< as nccl/faults.hpp reads it
    /// The end of the process is delayed so long after LibTorch's static objects are gone.
    std::chrono::milliseconds exit_delay{};
    long broken_task = -1;  ///< this task of the process breaks its GPU
};

/// The environment is read once. An unusable value ends the process with a line that names its
/// variable.
[[nodiscard]] const Settings& settings();

/// Writes `what` to stderr and ends the process. The program has asked for something that the fake
/// GPU does not have, or a setting is wrong.
[[noreturn]] void give_up(const std::string& what);

}  // namespace fake_gpu
