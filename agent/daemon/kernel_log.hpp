#pragma once

#include <optional>
#include <string>

#include "agent/process/keeper_protocol.hpp"
#include "agent/watch/kernel_notes.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

/// Asks this node's kernel why a worker of one generation ended: its log where this user may read
/// it, else the number of processes that the OOM killer killed. Reads without blocking. One thread.
class KernelLog {
public:
    /// Counts only what is logged from now on.
    KernelLog();

    /// One line about the end of a worker that failed; empty: the kernel had no part in it.
    [[nodiscard]] std::string about(const WorkerEnd& end);

private:
    void read_new();

    UniqueFd log_;  ///< not open where this user may not read it
    KernelNotes notes_;
    std::optional<long long> kills_before_;
};

}  // namespace ddprun::agent
