#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun {

/// Descriptor `from` of this process becomes `to` of the program.
struct FdMapping {
    int from = -1;
    int to = -1;
};

struct ProgramSpec {
    std::vector<std::string> command;  ///< [0] is a path: PATH is not searched
    std::vector<FdMapping> fds;        ///< 0, 1 and 2 are inherited where this does not name them
    bool has_own_session = true;
    bool dies_with_us = false;  ///< killed when the thread that starts it ends
    /// Its file may be on a network's file system, that stalls: /usr/bin/env executes it, so that
    /// start_program() does not wait for that. A file that cannot be executed ends with 126 or 127.
    bool may_be_slow = false;
};

struct StartedProgram {
    int pid = 0;
    UniqueFd pidfd;  ///< readable when it has ended; not open on kernels without pidfd
};

/// Starts a helper program of ours with this process's environment and working directory, all
/// signals default and unblocked, and no descriptor but 0, 1, 2 and the mapped ones. The caller
/// owns the child and reaps it. Blocks until the program is executed. Not for workers, which are
/// the keeper's (base/README.md says why). Failure, of exec too, names the program; then there is
/// no child. In the library base_child.
[[nodiscard]] Result<StartedProgram> start_program(const ProgramSpec& spec);

/// It exited with 0.
[[nodiscard]] inline bool has_succeeded(const siginfo_t& end) {
    return end.si_code == CLD_EXITED && end.si_status == 0;
}

/// "exited with code 17", "was killed by SIGKILL".
[[nodiscard]] std::string end_text(const siginfo_t& end);

/// Whether a program that may_be_slow was not executed: it does not exist, or is no program.
[[nodiscard]] inline bool was_not_executed(const siginfo_t& end) {
    constexpr int kNotExecutable = 126;
    constexpr int kNotFound = 127;
    return end.si_code == CLD_EXITED &&
           (end.si_status == kNotExecutable || end.si_status == kNotFound);
}

/// Copies of what is mapped, above every target; and every number up to `highest` is taken, so that
/// the pipe to the child gets none of them.
struct Copies {
    std::vector<UniqueFd> kept;
    std::vector<FdMapping> fds;
};
[[nodiscard]] Result<Copies> copy_above(const std::vector<FdMapping>& fds, int highest);

/// The path where the program `name` should be: in the folder of the running executable, where all
/// of ours are installed. Accesses no file.
[[nodiscard]] Result<std::string> path_beside_us(const std::string& name);

/// The same path, if the program exists; the error says where it should be.
[[nodiscard]] Result<std::string> program_beside_us(const std::string& name);

/// A close-on-exec pidfd of a child that has not been reaped; not open where the kernel has none.
[[nodiscard]] UniqueFd open_pidfd(int pid);

/// Its process has ended. The event loop may report a pidfd as readable that is not: it wakes for
/// what its tables had at that place before.
[[nodiscard]] bool has_ended(const UniqueFd& pidfd);

/// Descriptors from `first` on are closed by exec. Only system calls: for a child between fork and
/// exec.
void close_on_exec_from(int first);

}  // namespace ddprun
