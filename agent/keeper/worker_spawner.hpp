#pragma once

#include <string>
#include <vector>

#include <boost/system/result.hpp>

#include "agent/process/containment.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/saved_process_state.hpp"
#include "base/os/unique_fd.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

struct SpawnedWorker {
    int pid = 0;
    /// Four bytes of errno when exec failed, then end of file; only end of file when it succeeded.
    UniqueFd exec_status;
};

/// Forks and executes workers. It returns as soon as the child has its own copy
/// of everything: a slow exec delays no caller. One thread, which must live as long as the process:
/// the parent-death signal follows the thread.
class WorkerSpawner {
public:
    /// `containment` outlives this.
    WorkerSpawner(const Containment& containment, SavedProcessState saved_state);

    /// Starts `spawn.command` with stdout `out` and stderr `err`, the stdin that `spawn` says and
    /// nothing else but, for a standby, its socket, in its own session, on `spawn.cpus`, as
    /// `saved_state` says. The error is that of looking the program up, or of fork.
    [[nodiscard]] boost::system::result<SpawnedWorker> spawn(const KeeperSpawn& spawn,
                                                             const UniqueFd& out,
                                                             const UniqueFd& err,
                                                             const UniqueFd& standby = {});

private:
    const Containment& containment_;
    SavedProcessState saved_state_;
};

/// The path of `name` as execvp() finds it: itself with a slash, else the first executable file in
/// the folders of `search_path`. The error is ENOENT, or EACCES when there were only files that may
/// not be executed.
[[nodiscard]] boost::system::result<std::string> find_program(const std::string& name,
                                                              const std::string& search_path);

/// This process's environment with `overlay` set over it, as "KEY=value".
[[nodiscard]] std::vector<std::string> merged_environment(const Environment& overlay);

}  // namespace ddprun::agent
