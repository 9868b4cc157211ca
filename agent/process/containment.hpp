#pragma once

#include <set>
#include <string>

#include "rendezvous/base/error.hpp"

namespace ddprun::agent {

/// How the processes of a generation are held together, so that none survives it. The ladder of
/// levels is in agent/keeper/README.md; one object is one set of processes, those of the generation
/// that is held. Used by the keeper for the workers, by the agent for what a dead keeper left.
/// One thread.
class Containment {
public:
    virtual ~Containment() = default;

    /// The level's name, for the start line, status and reports.
    [[nodiscard]] virtual std::string level() const = 0;

    /// Called once in this process before anything is started in it.
    [[nodiscard]] virtual Result<void> open() = 0;

    /// Puts the calling process, a new child between fork and exec, into the set. Only system
    /// calls. Returns 0 or an errno.
    [[nodiscard]] virtual int enter() const noexcept = 0;

    /// SIGKILLs every process of the set that is found. Those that were forked meanwhile are found
    /// by the next call, which is due when a child of this process has died.
    virtual void kill_all() = 0;

    /// The kernel's word that the set is empty. Dead children that are not reaped still count.
    [[nodiscard]] virtual bool is_empty() const = 0;

    /// Who is left, for people; empty when nobody is.
    [[nodiscard]] virtual std::string describe_rest() const = 0;
};

/// Level C1, "keeper": every worker leads its own session and dies with its parent, and this
/// process is a subreaper, so that what a worker leaves behind becomes its child, is found and
/// killed. The set is every descendant except `excluded` children and theirs.
class SubreaperContainment final : public Containment {
public:
    explicit SubreaperContainment(std::set<int> excluded);

    [[nodiscard]] std::string level() const override;
    [[nodiscard]] Result<void> open() override;
    [[nodiscard]] int enter() const noexcept override;
    void kill_all() override;
    [[nodiscard]] bool is_empty() const override;
    [[nodiscard]] std::string describe_rest() const override;

    /// `pid`, a child of this process, and its descendants are not of the set.
    void exclude(int pid);

    /// Children of this process that are of the set, dead ones too.
    [[nodiscard]] std::set<int> children() const;

private:
    int owner_;  ///< this process, for the child to compare its parent with
    std::set<int> excluded_;
};

}  // namespace ddprun::agent
