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
};

struct Fault {
    FaultKind kind = FaultKind::None;
    std::chrono::milliseconds time{};
};

/// Of this process's next operation, as Settings::nccl_faults says: a list, split by commas, of
/// KIND, KIND@N or slow:MS@N, with N counted from 0. Without N it is each one's.
[[nodiscard]] Fault next_fault_of_operation();

/// Of the next communicator that connects: init-KIND.
[[nodiscard]] Fault next_fault_of_init();

}  // namespace fake_gpu
