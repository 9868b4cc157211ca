#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/base/instant.hpp"
#include "rendezvous/base/rng.hpp"
#include "rendezvous/protocol/limits.hpp"
#include "rendezvous/protocol/messages.hpp"

namespace ddprun::sim {

/// How often each kind of fault is drawn, relative to the others. 0 switches one off.
struct FaultWeights {
    int worker_crash = 0;
    int worker_exits_early = 0;  ///< exit 0 before its time
    int node_kill = 0;           ///< all of a node at once
    int connection_reset = 0;
    int connection_end = 0;   ///< end of stream although the agent lives
    int connection_clog = 0;  ///< nothing passes for a while
    int agent_signal = 0;
    int signal_everything = 0;  ///< agents and workers at once, as a scheduler does
    int keeper_loss = 0;
    int rendezvous_restart = 0;  ///< a new daemon without memory
    int rendezvous_held_up = 0;
    int agent_stall = 0;  ///< an agent does not run for a while, its workers do

    [[nodiscard]] int sum() const {
        return worker_crash + worker_exits_early + node_kill + connection_reset + connection_end +
               connection_clog + agent_signal + signal_everything + keeper_loss +
               rendezvous_restart + rendezvous_held_up + agent_stall;
    }
};

/// One run of the simulator, drawn from its seed: every seed has another size, other settings and
/// another mixture of faults (swarm testing).
struct SimOptions {
    std::uint64_t seed = 0;
    int nodes = 2;
    int slots_max = 3;
    bool is_in_process = false;  ///< one node, coordinator in the same process: no leases
    rdzv::JobSettings settings;
    rdzv::Limits limits;
    Milliseconds rendezvous_lost_timeout{20000};
    Milliseconds connect_timeout{20000};
    Milliseconds delay_max{5};        ///< of a message; each has its own, order is kept
    Milliseconds local_delay_max{5};  ///< keeper, store socket
    Milliseconds start_spread{1000};  ///< nodes come up within this
    Milliseconds work_min{0};         ///< a worker's time to exit 0
    Milliseconds work_max{10000};
    int sigterm_ignored_percent = 0;
    int sigterm_exits_zero_percent = 50;  ///< of those that heed it
    int runtime_percent = 50;             ///< of nodes whose workers look at the shared page
    int returns_percent = 50;             ///< of nodes that are gone
    int unkillable_percent = 0;           ///< of generations emptied
    Milliseconds faults_for{10000};
    Milliseconds fault_every{1000};
    FaultWeights faults;
};

[[nodiscard]] SimOptions draw_options(std::uint64_t seed);

/// One line for people.
[[nodiscard]] std::string describe(const SimOptions& options);

}  // namespace ddprun::sim
