#include "tests/sim/fault_plan.hpp"

#include <algorithm>
#include <numeric>

#include "tests/sim/dice.hpp"

namespace ddprun::sim {

const std::array<FaultKindInfo, kFaultKinds>& fault_kinds() {
    static const std::array<FaultKindInfo, kFaultKinds> all = {{
        {FaultKind::WorkerCrash, "worker-crash", 10, FaultNeeds::Nothing,
         "a worker exits badly or is killed"},
        {FaultKind::WorkerExitsEarly, "worker-exits-early", 4, FaultNeeds::Nothing,
         "exit 0 before its time"},
        {FaultKind::ExecFails, "exec-fails", 3, FaultNeeds::Nothing,
         "the next program that a node starts is not there"},
        {FaultKind::NodeKill, "node-kill", 6, FaultNeeds::Nothing,
         "agent and workers end at once: end of stream, reset or silence (power off)"},
        {FaultKind::NodeRenamed, "node-renamed", 3, FaultNeeds::Network,
         "the same, and it boots with a new id"},
        {FaultKind::ConnectionReset, "connection-reset", 10, FaultNeeds::Network,
         "what is under way is lost"},
        {FaultKind::ConnectionEnd, "connection-end", 3, FaultNeeds::Network,
         "end of stream although the agent lives"},
        {FaultKind::ConnectionClog, "connection-clog", 8, FaultNeeds::Network,
         "nothing passes for a while"},
        {FaultKind::CutUp, "cut-up", 3, FaultNeeds::Network,
         "nothing of one node reaches the rendezvous"},
        {FaultKind::CutDown, "cut-down", 3, FaultNeeds::Network,
         "nothing of the rendezvous reaches one node"},
        {FaultKind::Partition, "partition", 3, FaultNeeds::Network,
         "several nodes, or all, are out of reach at once, both ways"},
        {FaultKind::LinkFlap, "link-flap", 3, FaultNeeds::Network, "a link breaks again and again"},
        {FaultKind::DelaySpike, "delay-spike", 3, FaultNeeds::Network,
         "every message takes long for a while"},
        {FaultKind::AgentSignal, "agent-signal", 3, FaultNeeds::Nothing,
         "an agent gets SIGTERM or SIGINT"},
        {FaultKind::SignalEverything, "signal-everything", 1, FaultNeeds::Nothing,
         "agents and workers at once, as a scheduler does"},
        {FaultKind::KeeperLoss, "keeper-loss", 4, FaultNeeds::Nothing, "the workers' parent dies"},
        {FaultKind::AgentStall, "agent-stall", 4, FaultNeeds::Network,
         "an agent does not run for a while, its workers do"},
        {FaultKind::RendezvousRestart, "rendezvous-restart", 2, FaultNeeds::Network,
         "the daemon dies; the next one has its journal"},
        {FaultKind::RendezvousForgets, "rendezvous-forgets", 3, FaultNeeds::Network,
         "the daemon dies; the next one has no journal"},
        {FaultKind::RendezvousPause, "rendezvous-pause", 2, FaultNeeds::Network,
         "the daemon, or its machine, does not run for 1 ms to 60 s"},
        {FaultKind::JournalFails, "journal-fails", 1, FaultNeeds::Network,
         "the journal's disk is full a while"},
        {FaultKind::ReplayedReport, "replayed-report", 3, FaultNeeds::Network,
         "a node says again what it said of an older generation"},
        {FaultKind::Stranger, "stranger", 1, FaultNeeds::Network,
         "a join that disagrees with the run, or somebody who speaks without joining"},
        {FaultKind::EtcdSlow, "etcd-slow", 2, FaultNeeds::Daemons,
         "requests to etcd take up to 3 s for a while"},
        {FaultKind::EtcdCutOff, "etcd-cut-off", 3, FaultNeeds::Daemons,
         "one daemon, mostly the leader, is cut off from etcd"},
        {FaultKind::DaemonCutOff, "daemon-cut-off", 2, FaultNeeds::Daemons,
         "one daemon, mostly the leader, is cut off from all nodes"},
        {FaultKind::TwoOfOneName, "two-of-one-name", 1, FaultNeeds::Network,
         "a machine comes back under the name of another one that lives"},
    }};
    return all;
}

std::vector<PlannedFault> plan_faults(const SimOptions& options) {
    std::vector<PlannedFault> plan;
    const int sum = std::accumulate(options.faults.begin(), options.faults.end(), 0);
    if (sum == 0) {
        return plan;
    }
    Dice dice(options.seed, 1);
    Instant at{};
    for (std::size_t index = 0;; ++index) {
        at += dice.up_to(options.fault_every * 2);
        if (at >= Instant(options.faults_for)) {
            return plan;
        }
        int drawn = dice.between(0, sum - 1);
        std::size_t kind = 0;
        while (drawn >= options.faults[kind]) {
            drawn -= options.faults[kind];
            ++kind;
        }
        const PlannedFault fault{
            .index = index, .at = at, .kind = static_cast<FaultKind>(kind), .seed = dice.next()};
        const bool is_kept = !options.kept_faults.has_value() ||
                             std::find(options.kept_faults->begin(), options.kept_faults->end(),
                                       index) != options.kept_faults->end();
        const bool is_left_out = std::find(options.without.begin(), options.without.end(),
                                           fault.kind) != options.without.end();
        if (is_kept && !is_left_out) {
            plan.push_back(fault);
        }
    }
}

}  // namespace ddprun::sim
