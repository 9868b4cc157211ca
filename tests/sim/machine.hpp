#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/supervise/supervisor.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/host/endpoint_choice.hpp"
#include "tests/sim/dice.hpp"
#include "tests/sim/standbys.hpp"

namespace ddprun::sim {

/// A fake process of the user's program.
struct FakeWorker {
    std::uint64_t id = 0;
    Generation generation;
    std::string digest;
    Rank rank;
    LocalRank local_rank;
    bool ignores_sigterm = false;
    bool has_runtime = false;             ///< reads the shared page
    bool is_dying = false;                ///< failed, and not gone
    bool was_signalled = false;           ///< or asked, by its agent
    Instant quiet_from = Instant::max();  ///< it shows no sign of life from then on
};

/// An agent's report of a generation, for a network that repeats it and should not.
struct OldReport {
    Generation generation;
    std::string token;
    rdzv::AgentMessage message;
};

/// A machine and, while it runs, its agent with everything that the real shell would own.
struct Machine {
    int index = 0;
    NodeId node;
    int slots = 1;
    Dice dice{0};
    bool shows_by_gpu = false;                      ///< that its workers live, and by nothing else
    int clock_permille = 1000;                      ///< of the true time
    std::uint64_t incarnation = 0;                  ///< events of an older one are void
    std::unique_ptr<agent::Supervisor> supervisor;  ///< null: no ddprun runs here
    std::optional<ConnectionId> connection;         ///< as the agent sees it
    bool is_connected = false;                      ///< that connection is up
    bool is_accepted = false;                       ///< over it
    std::string token;                              ///< of the run that accepted it
    Instant accepted_at{};
    std::optional<Instant> tick_at;
    bool is_stalled = false;  ///< the agent's process does not run; its keeper and workers do
    std::deque<std::function<void(Machine&)>> waits_for_agent;  ///< meanwhile, in order
    std::string start_digest;                                   ///< of the last Start that arrived
    std::vector<FakeWorker> workers;
    std::unique_ptr<FakeStandbys> standbys;  ///< null: --warm off
    int prepares = 0;                        ///< commands that this ddprun has run
    std::vector<OldReport> reports;          ///< the last few
    Instant publish_until{};                 ///< says the page, in true time
    Instant looked_at{};                     ///< for signs of life
    std::uint16_t listening_port = 0;
    std::uint16_t serving_port = 0;
    Instant keeper_last{};          ///< its reports keep their order
    std::uint64_t keeper = 0;       ///< answers of a lost one are void
    bool fails_to_execute = false;  ///< the next worker
    bool is_keeper_gone = false;    ///< what it is told is lost, until the next one runs
    std::optional<rdzv::EndpointChoice> choice;
    std::optional<ConnectionId> unanswered;  ///< asked for the leader there, and heard nothing
    std::optional<rdzv::Verdict> shown;      ///< to the user
    std::optional<Instant> signalled_at;
    std::optional<Instant> drained_at;  ///< by an operator
    std::string signalled_digest;       ///< of its workers then
    bool is_replaced = false;           ///< the rendezvous has taken another for this one
    bool is_broken = false;             ///< has a worker that nothing kills
    bool has_namesake = false;          ///< another one came under its name, or it under another's
    bool has_given_up = false;          ///< the rendezvous, for good: it ends on its own
    Instant disturbed_until{};          ///< until then a fault reached its connection or its life
    /// The rendezvous has given it up for a fault, and has started nothing here since.
    bool is_lost_for_fault = false;
    bool is_lied_about = false;  ///< its connection ended as only that of a dead agent does
    std::optional<Instant> silent_since;  ///< waits, and no message says for what
};

}  // namespace ddprun::sim
