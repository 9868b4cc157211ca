#include "agent/daemon/dying.hpp"

#include <sys/wait.h>

#include "agent/process/children.hpp"

namespace ddprun::agent {

std::optional<WorkerEnd> abnormal_end_of(int pid, FatalSignal told) {
    WorkerEnd end{};
    end.pid = pid;
    if (told.pid != 0) {
        if (own_number_of(pid) != told.pid) {
            return std::nullopt;
        }
        end.signal = told.signal;
        return end;
    }
    // The kernel knows the status before it marks the lock.
    const std::optional<ProcessStat> stat = stat_of(pid);
    if (!stat || !stat->is_exiting || stat->wait_status == 0) {
        return std::nullopt;
    }
    if (WIFSIGNALED(stat->wait_status)) {
        end.signal = WTERMSIG(stat->wait_status);
        end.core_dumped = WCOREDUMP(stat->wait_status);
    } else {
        end.exit_code = WEXITSTATUS(stat->wait_status);
    }
    return end;
}

}  // namespace ddprun::agent
