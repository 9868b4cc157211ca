#pragma once

#include <memory>
#include <string>

#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

/// Reads the CPU time of the workers and of all processes that they have started. A value that may
/// go to another thread: without a cgroup, reading it sweeps /proc, which may take long.
class CpuTime {
public:
    /// `cgroup`: the cgroup v2 of all generations, an open folder; not open: there is none.
    /// `keeper`: the parent of all workers. `proc` is /proc.
    CpuTime(UniqueFd cgroup, int keeper, std::string proc);

    /// Used until now, of this generation and those before. Any thread.
    [[nodiscard]] Duration used() const;

private:
    std::shared_ptr<const UniqueFd> cgroup_;  ///< shared by the copies
    int keeper_;
    std::string proc_;
};

}  // namespace ddprun::agent
