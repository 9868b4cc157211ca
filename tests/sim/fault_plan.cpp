#include "tests/sim/fault_plan.hpp"

#include <algorithm>
#include <numeric>

#include "tests/sim/dice.hpp"

namespace ddprun::sim {

const std::array<FaultKindInfo, kFaultKinds>& fault_kinds() {
    static const std::array<FaultKindInfo, kFaultKinds> all = {{
        {FaultKind::WorkerCrash, "worker-crash", 10, false, "a worker exits badly or is killed"},
        {FaultKind::WorkerExitsEarly, "worker-exits-early", 4, false, "exit 0 before its time"},
        {FaultKind::ExecFails, "exec-fails", 3, false,
         "the next program that a node starts is not there"},
        {FaultKind::NodeKill, "node-kill", 6, false,
         "agent and workers end at once: end of stream, reset or silence (power off)"},
        {FaultKind::NodeRenamed, "node-renamed", 3, true, "the same, and it boots with a new id"},
        {FaultKind::ConnectionReset, "connection-reset", 10, true, "what is under way is lost"},
        {FaultKind::ConnectionEnd, "connection-end", 3, true,
         "end of stream although the agent lives"},
        {FaultKind::ConnectionClog, "connection-clog", 8, true, "nothing passes for a while"},
        {FaultKind::CutUp, "cut-up", 3, true, "nothing of one node reaches the rendezvous"},
        {FaultKind::CutDown, "cut-down", 3, true, "nothing of the rendezvous reaches one node"},
        {FaultKind::Partition, "partition", 3, true,
         "several nodes, or all, are out of reach at once, both ways"},
        {FaultKind::LinkFlap, "link-flap", 3, true, "a link breaks again and again"},
        {FaultKind::DelaySpike, "delay-spike", 3, true, "every message takes long for a while"},
        {FaultKind::AgentSignal, "agent-signal", 3, false, "an agent gets SIGTERM or SIGINT"},
        {FaultKind::SignalEverything, "signal-everything", 1, false,
         "agents and workers at once, as a scheduler does"},
        {FaultKind::KeeperLoss, "keeper-loss", 4, false, "the workers' parent dies"},
        {FaultKind::AgentStall, "agent-stall", 4, true,
         "an agent does not run for a while, its workers do"},
        {FaultKind::RendezvousRestart, "rendezvous-restart", 2, true,
         "the daemon dies; the next one has its journal"},
        {FaultKind::RendezvousForgets, "rendezvous-forgets", 3, true,
         "the daemon dies; the next one has no journal"},
        {FaultKind::RendezvousPause, "rendezvous-pause", 2, true,
         "the daemon, or its machine, does not run for 1 ms to 60 s"},
        {FaultKind::JournalFails, "journal-fails", 1, true, "the journal's disk is full a while"},
        {FaultKind::ReplayedReport, "replayed-report", 3, true,
         "a node says again what it said of an older generation"},
        {FaultKind::Stranger, "stranger", 1, true, "a join that disagrees with the run"},
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
