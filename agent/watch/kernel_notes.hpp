#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

/// Kernel messages that may explain the end of a worker: kills by the OOM killer, crashes, errors
/// of NVIDIA GPUs (Xid). Covers one generation, as older messages explain nothing. Bounded.
class KernelNotes {
public:
    /// One record of /dev/kmsg: "priority,number,microseconds,flags;text".
    void take(std::string_view record);

    /// The newest line that names `pid`; else, if it was ended by SIGKILL, the newest kill by the
    /// OOM killer, whomever it hit (the pid may be another in a container, or a worker's child);
    /// else the newest error of a GPU. Empty: nothing was logged.
    [[nodiscard]] std::string about(int pid, std::optional<int> signal) const;

private:
    std::deque<std::string> notes_;  ///< oldest first
};

/// The number of processes that the OOM killer killed, in /proc/vmstat; none: not told.
[[nodiscard]] std::optional<long long> memory_kills_in(std::string_view vmstat);

}  // namespace ddprun::agent
