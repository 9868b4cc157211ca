#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::sim {

/// The kinds of faults. fault_plan.cpp has their names and what they mean.
enum class FaultKind {
    WorkerCrash,
    WorkerExitsEarly,
    ExecFails,
    NodeKill,
    NodeRenamed,
    ConnectionReset,
    ConnectionEnd,
    ConnectionClog,
    CutUp,
    CutDown,
    Partition,
    LinkFlap,
    DelaySpike,
    AgentSignal,
    SignalEverything,
    KeeperLoss,
    AgentStall,
    RendezvousRestart,
    RendezvousForgets,
    RendezvousPause,
    JournalFails,
    ReplayedReport,
    Stranger,
    EtcdSlow,
    EtcdCutOff,
    DaemonCutOff,
    TwoOfOneName,
};
constexpr std::size_t kFaultKinds = 27;

/// How often each kind is drawn, relative to the others. 0 switches one off.
using FaultWeights = std::array<int, kFaultKinds>;

/// A slow node's messages take so many times as long.
constexpr int kSlowness = 10;

/// How many nodes a run may have; 0:0 leaves it to the seed.
struct NodeRange {
    int least = 0;
    int most = 0;
};

/// One run of the simulator, drawn from its seed: every seed has another size, other settings and
/// another mixture of faults (swarm testing).
struct SimOptions {
    std::uint64_t seed = 0;
    NodeRange range;
    int nodes = 2;
    int slots_max = 3;
    int daemons = 1;             ///< several compete in etcd for being the one that decides
    int slow_nodes = 0;          ///< the last ones: their messages take kSlowness times as long
    int odd_nodes = 0;           ///< the last ones: started with another --max-restarts
    int unlike_nodes = 0;        ///< the last ones: they run another program
    int racks = 0;               ///< nodes are on these, or their rack is not told; 0: of all
    int bandwidth_kib = 0;       ///< of a node's link in a second, each way; 0: no limit
    bool is_in_process = false;  ///< one node, coordinator in the same process: no leases
    rdzv::JobSettings settings;
    Limits limits;
    Milliseconds rendezvous_lost_timeout{20000};
    Milliseconds connect_timeout{20000};
    Milliseconds delay_max{5};        ///< of a message; each has its own, order is kept
    Milliseconds local_delay_max{5};  ///< keeper, store socket
    Milliseconds journal_delay_max{0};
    Milliseconds start_spread{1000};  ///< nodes come up within this
    Milliseconds work_min{0};         ///< a worker's time to exit 0
    Milliseconds work_max{10000};
    int clock_drift_percent = 0;  ///< of agents, either way
    Milliseconds timer_grain{0};  ///< timers fire at multiples of this
    int sigterm_ignored_percent = 0;
    int sigterm_exits_zero_percent = 50;  ///< of those that heed it
    int runtime_percent = 50;             ///< of nodes whose workers read the shared page
    int returns_percent = 50;             ///< of nodes that are gone
    int unkillable_percent = 0;           ///< of generations emptied
    int collateral_percent = 0;           ///< of workers that fail when a peer is gone
    int progress_percent = 0;             ///< of failures that report their step
    int slow_death_percent = 0;           ///< of failures that are known before the process is gone
    bool has_preflight = false;           ///< nodes check themselves before each generation
    int unfit_percent = 0;                ///< of these checks while there are faults: not fit
    rdzv::Prepares prepares = rdzv::Prepares::Nobody;  ///< a command before the first workers
    bool is_warm = false;                              ///< nodes keep standbys
    int gpu_percent = 0;    ///< of nodes whose workers show life by GPU use alone
    int hang_percent = 0;   ///< of generations that start while there are faults
    int quiet_percent = 0;  ///< of generations in which all but one node only wait
    Milliseconds faults_for{10000};
    Milliseconds fault_every{1000};
    Milliseconds order_every{0};         ///< an operator asks for something; 0: never
    Milliseconds etcd_full_at{0};        ///< etcd takes no writes from then on, and keeps leases
    Milliseconds etcd_full_for{0};       ///< 0: never
    bool etcd_grants_when_full = false;  ///< a record is too large: others may still lead
    FaultWeights faults{};
    std::vector<FaultKind> without;  ///< left out of the plan
    /// The plan has only these of the faults that the seed draws; without a value, all.
    std::optional<std::vector<std::size_t>> kept_faults;
};

[[nodiscard]] SimOptions draw_options(std::uint64_t seed, NodeRange nodes = {});

/// After something was changed by hand: what depends on it fits again.
void make_consistent(SimOptions& options);

/// One line for people.
[[nodiscard]] std::string describe(const SimOptions& options);

}  // namespace ddprun::sim
