#pragma once

#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "worker_runtime/contract/containment_level.hpp"

namespace ddprun::agent {

/// A cgroup v2 of our own, to which the workers of one agent belong, and all that they start,
/// whatever it does. Each generation has a cgroup below it. No controller is switched on. As long
/// as the agent or its keeper lives, it is locked; one without a lock was left behind
/// (clear_stale_cgroups). One thread.
class Cgroup {
public:
    /// Makes one below the cgroup of this process, and has a child be born in it. The error says
    /// what is missing; nothing is left then.
    [[nodiscard]] static Result<Cgroup> make();

    /// Returns no cgroup if the wanted level has none, or if none can be had and none is demanded.
    [[nodiscard]] static Result<std::optional<Cgroup>> make_if_wanted(
        std::optional<ContainmentLevel> wanted);

    /// In the keeper: `folder` as handed over by the agent, with its lock.
    [[nodiscard]] static Result<Cgroup> from(UniqueFd folder);

    /// The folder, for the keeper.
    [[nodiscard]] int folder() const { return folder_.get(); }

    /// Makes the cgroup of a generation. One in which all were killed is never used again: since
    /// 6.14 Linux compares the kills of a child's cgroup with those of its parent's, and kills the
    /// child that was born into one with more.
    [[nodiscard]] Result<void> begin_generation();

    /// The generation's folder, for fork_into(); -1 before begin_generation().
    [[nodiscard]] int birthplace() const { return birthplace_.get(); }

    /// When is_empty(): removes the cgroups of generations.
    void end_generation();

    /// SIGKILL to all its processes, those that are being forked meanwhile too.
    void kill_all() const;

    /// True if the kernel reports no process in it. Dead ones that are not reaped do not count.
    [[nodiscard]] bool is_empty() const;

    /// Readable out of band (EPOLLPRI) when is_empty() has changed since it was last asked.
    [[nodiscard]] int events() const { return events_.get(); }

    /// Removes it, if it is empty.
    void remove();

private:
    [[nodiscard]] Result<void> open_files();

    UniqueFd folder_;
    UniqueFd birthplace_;
    int generations_ = 0;
    UniqueFd kill_;
    UniqueFd events_;
};

/// Kills what is left in the cgroups of agents that are gone with their keepers, below and beside
/// the cgroup of this process, and removes them. Returns a line about it, or nothing. Waits at most
/// `patience` for processes to be gone.
[[nodiscard]] std::string clear_stale_cgroups(Milliseconds patience);

}  // namespace ddprun::agent
