#pragma once

#include <functional>

#include "base/result.hpp"

namespace ddprun {

/// Runs `body` in `count` processes of this machine, ranks 0 to count - 1 of one world, for a
/// program that was started without a launcher; returns when all have ended.
///
///     int main() {
///         const ddprun::Result<void> ended = ddprun::spawn(4, train);
///         …
///     }
///
/// Each worker is this program anew, with the same arguments: LibTorch's threads and CUDA do not
/// survive a fork. So main() begins there, too, up to this call, which runs `body` and exits with
/// what it returns; code behind the call runs here only. If a program has several calls, a worker
/// skips those before its own. A worker finds its place as under torchrun, by
/// Worker::from_environment(). With OMP_NUM_THREADS unset each gets its share of the cores.
///
/// When one ends with another code than 0, by a signal or by an exception, the others get SIGTERM,
/// after RuntimeLimits::spawn_stop_grace SIGKILL, and the error says which was the first, how it
/// ended, and what it threw. If this process dies they are killed.
///
/// If a launcher has started this process, it is a worker already: `body` runs in it, `count`
/// is the launcher's, and the process exits as a spawned one does.
[[nodiscard]] Result<void> spawn(int count, const std::function<int()>& body);

}  // namespace ddprun
