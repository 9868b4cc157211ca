#pragma once

#include <memory>
#include <optional>
#include <string>

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// What keeps a node from going on: the nearest thing, if there are several.
enum class Wait {
    Nothing,
    KilledWorkers,   ///< to be gone
    Stacks,          ///< of a generation that hangs, to be saved
    StoppedWorkers,  ///< to end
    UnfitHeard,      ///< the rendezvous to have heard that this node is not fit
    Link,            ///< a connection to the rendezvous
    GpuMemory,       ///< to be freed
    Preflight,
    Prepare,       ///< the command that runs here
    PrepareToEnd,  ///< the same, which was signalled or killed
    LastWords,     ///< of a failed worker
    StoreSocket,
    JoinAnswer,
    RendezvousSays,  ///< what the rendezvous says it waits for
    OtherNodesDrain,
    Generation,     ///< the rendezvous has given no reason
    OtherNodesEnd,  ///< workers here have ended
};

/// Why an agent exits.
enum class ExitReason {
    Signal,    ///< or a notice
    Released,  ///< the job goes on without this node
    Refused,
    Verdict,
    RendezvousLost,  ///< or never found
    Unprepared,      ///< the prepare command failed here
    Unusable,        ///< what this node was given cannot work, or it is not fit
    Unkillable,      ///< a worker survived SIGKILL
    Bug,             ///< of ddprun itself
};

/// What has made an agent leave its job, with time to save.
enum class LeaveCause {
    None,    ///< it does not, or goes for another reason
    Signal,  ///< but no Ctrl-C
    TimeLimit,
    Notice,  ///< that concerns this node
};

/// Decides everything on one node: when workers start, are signalled, killed and judged, what is
/// reported, and when the agent may go. Pure, like rdzv::Coordinator: agent/README.md holds its
/// state × input table. Owned and called by one thread.
class Supervisor {
public:
    explicit Supervisor(SupervisorOptions options);
    ~Supervisor();
    Supervisor(const Supervisor&) = delete;
    Supervisor& operator=(const Supervisor&) = delete;

    /// Takes one input at `now`, which never goes backwards; appends what must be done, in order.
    void step(Instant now, const Input& input, Effects& out);

    [[nodiscard]] std::optional<Instant> next_deadline() const;

    [[nodiscard]] Wait waits_for() const;

    /// The same for people; empty when nothing is awaited.
    [[nodiscard]] std::string explain() const;

    /// Why the agent will exit, once that is decided. Workers that may live go first.
    [[nodiscard]] std::optional<ExitReason> exit_reason() const;

    /// Why it was left, once exit_reason() is known.
    [[nodiscard]] LeaveCause leave_cause() const;

    /// How long workers took to leave when they were last asked, here or as the options say.
    [[nodiscard]] std::optional<Milliseconds> saving() const;

    /// The generation whose workers may live here; none when proven empty. For checkers.
    [[nodiscard]] std::optional<Generation> held_generation() const;

private:
    class State;
    std::unique_ptr<State> state_;
};

}  // namespace ddprun::agent
