#pragma once

#include <sys/resource.h>

#include <bitset>
#include <string>

#include "base/result.hpp"

namespace ddprun::agent {

/// The state that ddprun was started with and changes for itself: the signals that were blocked or
/// ignored and the limit on open files. Captured first thing in main(), before any of them is
/// touched; carried to the keeper as text; put back in every worker between fork and exec.
class SavedProcessState {
public:
    /// Reads the state of this process. Standard descriptors that are closed are opened on
    /// /dev/null, so that no socket of ours ever becomes a program's stdout.
    [[nodiscard]] static SavedProcessState capture();

    /// The inverse of to_text(); failure is InvalidArgument.
    [[nodiscard]] static Result<SavedProcessState> from_text(const std::string& text);

    /// One word of printable characters, for a command line.
    [[nodiscard]] std::string to_text() const;

    /// Makes this process as the captured one was; SIGPIPE becomes default in any case. Signals are
    /// unblocked last. Only system calls: allowed between fork and exec. Returns 0 or an errno.
    [[nodiscard]] int restore() const;

    [[nodiscard]] bool ignores(int signal) const;
    [[nodiscard]] bool blocks(int signal) const;

    bool operator==(const SavedProcessState& other) const;

private:
    static constexpr int kSignals = 64;

    std::bitset<kSignals + 1> ignored_;
    std::bitset<kSignals + 1> blocked_;
    rlimit open_files_{};
};

/// Ignores every signal that a user or a scheduler sends to all processes of a job: a process that
/// looks after others ends when its work is done, not because the job was asked to stop.
void ignore_asking_signals();

}  // namespace ddprun::agent
