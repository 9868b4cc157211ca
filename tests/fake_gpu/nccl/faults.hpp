#pragma once

#include <chrono>

namespace fake_gpu {

/// How an operation, or the connecting of a communicator, goes wrong.
enum class FaultKind {
    None,
    Hang,    ///< takes no part, until it is aborted
    Error,   ///< the same, with an asynchronous error
    Slow,    ///< takes part after a time
    Die,     ///< kills this process
    Refuse,  ///< the call fails
    Break,   ///< meets an illegal address after a time, which breaks the GPU
};

struct Fault {
    FaultKind kind = FaultKind::None;
    std::chrono::milliseconds time{};
};

/// Returns the fault of this process's next operation. Settings::nccl_faults lists faults, split by
/// commas: KIND, KIND@N, slow:MS@N or break:MS@N, with N counted from 0. A fault without N is each
/// operation's.
[[nodiscard]] Fault next_fault_of_operation();

/// Returns the fault of the next communicator that connects: init-KIND in the list.
[[nodiscard]] Fault next_fault_of_init();

}  // namespace fake_gpu
