#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/supervisor.hpp"
#include "rendezvous/base/instant.hpp"
#include "rendezvous/base/tagged.hpp"

namespace ddprun::sim {

/// A fake process of the user's program.
struct FakeWorker {
    std::uint64_t id = 0;
    Generation generation;
    std::string digest;
    Rank rank;
    LocalRank local_rank;
    bool ignores_sigterm = false;
    bool has_runtime = false;    ///< looks at the shared page
    bool was_signalled = false;  ///< or asked, by its agent
};

/// A machine and, while it runs, its agent with everything that the real shell would own.
struct Machine {
    int index = 0;
    NodeId node;
    int slots = 1;
    std::uint64_t incarnation = 0;                  ///< events of an older one are void
    std::unique_ptr<agent::Supervisor> supervisor;  ///< null: no ddprun runs here
    std::optional<ConnectionId> connection;         ///< as the agent sees it
    std::optional<Instant> tick_at;
    bool is_stalled = false;  ///< the agent's process does not run; its keeper and workers do
    std::deque<std::function<void(Machine&)>> waits_for_agent;  ///< meanwhile, in order
    std::string start_digest;                                   ///< of the last Start that arrived
    std::vector<FakeWorker> workers;
    Instant publish_until{};  ///< says the page
    std::uint16_t listening_port = 0;
    std::uint16_t serving_port = 0;
    Instant keeper_last{};        ///< its reports keep their order
    std::uint64_t keeper = 0;     ///< answers of a lost one are void
    bool is_keeper_gone = false;  ///< what it is told is lost, until the next one is there
    Milliseconds backoff{0};
    std::optional<rdzv::Verdict> shown;  ///< to the user
    bool was_signalled = false;
    bool is_replaced = false;    ///< the rendezvous has taken another for this one
    bool is_broken = false;      ///< has a worker that nothing kills
    bool is_disturbed = false;   ///< a fault reached its connection or its life
    bool is_lied_about = false;  ///< its connection ended as only that of a dead agent does
};

}  // namespace ddprun::sim
