#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/os/unique_fd.hpp"

namespace ddprun::launcher {

/// The ddprun that writes a run's logs: it holds a lock on the run's folder while it lives. A child
/// waits for that lock: the kernel reports a lock's release only to a process that waits for it.
/// The destructor kills and reaps the child, which dies with this process, too.
class RunWriter {
public:
    explicit RunWriter(const std::string& run);
    ~RunWriter();
    RunWriter(const RunWriter&) = delete;
    RunWriter& operator=(const RunWriter&) = delete;

    /// Readable once the writer is gone; -1 where that cannot be known: no process is left for the
    /// child, or the file system has no locks.
    [[nodiscard]] int descriptor() const { return gone_.get(); }

    /// To be called when descriptor() is readable: whether the writer is gone. If not, it cannot
    /// be known, and descriptor() is -1 from now on.
    [[nodiscard]] bool is_gone();

private:
    UniqueFd gone_;
    std::optional<pid_t> child_;
};

}  // namespace ddprun::launcher
