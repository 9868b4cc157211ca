#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"

namespace ddprun::launcher {

/// A locked file that says which number a ddprun has; removed when this goes.
class NumberLock {
public:
    NumberLock() = default;
    NumberLock(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
    NumberLock(NumberLock&&) noexcept = default;
    NumberLock& operator=(NumberLock&&) noexcept = default;
    NumberLock(const NumberLock&) = delete;
    NumberLock& operator=(const NumberLock&) = delete;
    ~NumberLock();

private:
    std::string path_;
    UniqueFd fd_;
};

/// The identity of this node, the same again after a restart. Two ddprun on one machine differ by a
/// number, the lowest that is free; holding `lock` holds the number.
struct NodeIdentity {
    NodeId id;
    int number = 0;
    NumberLock lock;
};

/// From boot id, network namespace, Slurm node name if any, and the lowest number of 0…4095 whose
/// lock file in `state_folder` no process holds for this job.
[[nodiscard]] Result<NodeIdentity> derive_node_identity(const std::string& state_folder,
                                                        const JobId& job,
                                                        const std::string& slurm_node_name);

/// Numeric addresses of all interfaces that are up.
[[nodiscard]] std::vector<std::string> interface_addresses();

}  // namespace ddprun::launcher
