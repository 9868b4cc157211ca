#pragma once

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
};

struct StartedProgram {
    int pid = 0;
    UniqueFd pidfd;  ///< readable when it has ended; not open on kernels without pidfd
};

/// Starts a helper program of ours with this process's environment and working directory, all
/// signals default and unblocked, and no descriptor but 0, 1, 2 and the mapped ones. The caller
/// owns the child and reaps it. Not for workers: those are the keeper's. Failure, of exec too,
/// names the program.
[[nodiscard]] Result<StartedProgram> start_program(const ProgramSpec& spec);

/// The program `name` in the folder of the running executable, where all of ours are installed;
/// the error says where it should be.
[[nodiscard]] Result<std::string> program_beside_us(const std::string& name);

/// A close-on-exec pidfd of a child that has not been reaped; not open where the kernel has none.
[[nodiscard]] UniqueFd open_pidfd(int pid);

}  // namespace ddprun
