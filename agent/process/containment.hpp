#pragma once

#include <optional>
#include <set>
#include <string>

#include "agent/process/cgroup.hpp"
#include "agent/process/outer_pids.hpp"
#include "worker_runtime/contract/containment_level.hpp"

namespace ddprun::agent {

/// The processes of the generation that is held, so that none survives it: every descendant of this
/// process except `excluded` children and theirs, and every member of `cgroup`. Every worker leads
/// its own session and dies with its parent. This process is a subreaper, so that what a worker
/// leaves behind becomes its child, is found and killed; where it cannot be, the level is Session.
/// With PidNamespace the kernel, too, kills them all when the keeper ends.
/// Used by the keeper for the workers, by the agent for what a dead keeper left. One thread.
class Containment {
public:
    /// `wanted`: none is the highest that `cgroup` and the kernel allow. `outer_pids` is for the
    /// keeper.
    Containment(std::set<int> excluded, std::optional<Cgroup> cgroup,
                std::optional<ContainmentLevel> wanted, OuterPids outer_pids = {});

    /// The level that is really in force.
    [[nodiscard]] ContainmentLevel level() const { return level_; }

    /// For the keeper; -1: there is no cgroup.
    [[nodiscard]] int cgroup_folder() const { return cgroup_ ? cgroup_->folder() : -1; }

    /// Before the first worker of a generation.
    [[nodiscard]] Result<void> begin_generation();

    /// The cgroup in which workers are to be born; -1: this process's.
    [[nodiscard]] int birthplace() const { return cgroup_ ? cgroup_->birthplace() : -1; }

    /// When is_empty().
    void end_generation();

    /// Makes the calling process, a new child between fork and exec, one of the set. Only system
    /// calls. Returns 0 or an errno.
    [[nodiscard]] int enter() const noexcept;

    /// SIGKILLs every process of the set that is found. Those that were forked meanwhile are found
    /// by the next call, which is due when a child of this process has died.
    void kill_all();

    /// The kernel's word that the set is empty; false also while that cannot be looked up. Dead
    /// children that are not reaped still count.
    [[nodiscard]] bool is_empty() const;

    /// Readable out of band when is_empty() may have changed without a child's death; -1: never.
    [[nodiscard]] int events() const { return cgroup_ ? cgroup_->events() : -1; }

    /// By which number others know this child; it has not been reaped.
    [[nodiscard]] int outer_pid(int child) const { return outer_pids_.of(child); }

    /// The processes that are left, for people, by outer_pid(); empty when none is.
    [[nodiscard]] std::string describe_rest() const;

    /// `pid`, a child of this process, and its descendants are not of the set.
    void exclude(int pid);

    /// Children of this process that are of the set, dead ones too, as far as they can be listed.
    [[nodiscard]] std::set<int> children() const;

    /// At the end: gives back what it holds of the kernel's.
    void release();

private:
    int owner_;  ///< this process, for the child to compare its parent with
    std::set<int> excluded_;
    std::optional<Cgroup> cgroup_;
    OuterPids outer_pids_;
    ContainmentLevel level_;
};

}  // namespace ddprun::agent
