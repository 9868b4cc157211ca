#include "agent/process/outer_pids.hpp"

#include <fcntl.h>

#include <algorithm>
#include <string>

#include "base/os/read_files.hpp"
#include "base/os/start_program.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

int OuterPids::of(int child) const {
    if (!descriptors_.is_open()) {
        return child;
    }
    const UniqueFd pidfd = open_pidfd(child);
    const UniqueFd file(
        openat(descriptors_.get(), std::to_string(pidfd.get()).c_str(), O_RDONLY | O_CLOEXEC));
    return std::max(number_after<int>(read_part(file.get(), 1024), "\nPid:\t").value_or(0), 0);
}

}  // namespace ddprun::agent
