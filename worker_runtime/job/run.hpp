#pragma once

#include <functional>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "base/result.hpp"
#include "worker_runtime/job/worker.hpp"

namespace ddprun {

/// The whole of a training's main: makes this process a worker, has `body` train, and returns
/// main's exit code, which is what `body` returns: worker.finish() or worker.leave(…).
///
///     int main(int argc, char** argv) {
///         return ddprun::run(argc, argv, [](ddprun::Worker& worker) {
///             ddprun::ProcessGroup group = checked(worker.process_group());
///             …
///             return worker.finish();
///         });
///     }
///
/// In `body` errors are exceptions, from whichever code: LibTorch, DistributedDataParallel, the
/// program itself, and checked() for each Result. An exception that leaves `body` is printed on
/// stderr with the program's name and the rank (with LibTorch's backtrace if
/// TORCH_SHOW_CPP_STACKTRACES is 1), stands in the error file that the launcher has named, and
/// makes the exit code 1. The connections to the other ranks then last as long as the process: no
/// peer fails of this failure before the agent knows of it. So return from main at once.
///
/// A program that has this may be started before its time, with `--warm`: it then waits before
/// main() and its own static initialisers, and goes on as any other worker (docs/warm.md).
[[nodiscard]] int run(int argc, char** argv, const std::function<int(Worker&)>& body);

/// The value of `result`, or its error as an exception: for the body of run().
template <typename T>
T checked(Result<T> result) {
    if (!result) {
        throw std::runtime_error(std::move(result).error().what);
    }
    if constexpr (!std::is_void_v<T>) {
        return std::move(*result);
    }
}

}  // namespace ddprun
