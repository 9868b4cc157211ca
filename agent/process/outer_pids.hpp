#pragma once

#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

/// By which numbers others know the children of this process: other ones than we do where it is
/// the first of a PID namespace (start_first_process.hpp). One thread.
class OuterPids {
public:
    /// No namespace of our own: the same numbers.
    OuterPids() = default;

    /// `descriptors` is the folder /proc/self/fdinfo of this process in the /proc of the others:
    /// what it says of a pidfd is in their numbers.
    explicit OuterPids(UniqueFd descriptors) : descriptors_(std::move(descriptors)) {}

    /// Returns the outer pid of a child that has not been reaped; 0: unknown, no descriptors left.
    [[nodiscard]] int of(int child) const;

private:
    UniqueFd descriptors_;
};

}  // namespace ddprun::agent
