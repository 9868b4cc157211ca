#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/supervisor.hpp"
#include "rendezvous/base/rng.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "tests/sim/checker.hpp"
#include "tests/sim/event_queue.hpp"
#include "tests/sim/machine.hpp"
#include "tests/sim/network.hpp"
#include "tests/sim/options.hpp"
#include "tests/sim/trace_log.hpp"

namespace ddprun::sim {

struct SimResult {
    std::uint64_t hash = 0;
    std::uint64_t events = 0;
    Duration virtual_time{};
    std::string verdict;                   ///< the last one reached, for people
    std::optional<std::string> violation;  ///< "S3: …"
    std::vector<std::string> trace;
};

/// One run: a real Coordinator, real Supervisors and the real codec under virtual time, with
/// everything around them faked and broken at random. The same options give the same trace.
///
/// driver.cpp         the loop, the rendezvous side
/// driver_agent.cpp   what an agent's shell does: effects, link, ticks
/// driver_workers.cpp keeper and workers
/// driver_faults.cpp  what goes wrong
class Simulation {
public:
    Simulation(SimOptions options, bool keeps_trace);

    [[nodiscard]] SimResult run();

private:
    using Action = std::function<void(Machine&)>;

    // The rendezvous.
    void step_rendezvous(const rdzv::Input& input);
    void arm_rendezvous();
    void rendezvous_receives(ConnectionId connection, Packet packet);
    void carry_out(const rdzv::Effects& effects);
    void judge_false_deaths(const Machine& machine, const rdzv::RendezvousMessage& message);
    void judge_publishing(const Machine& machine);
    [[nodiscard]] bool is_over() const;
    void judge_end();

    // Agents.
    void boot(int index);
    void connect(Machine& machine);
    void node_receives(ConnectionId connection, int node, Packet packet);
    void agent_receives(Machine& machine, ConnectionId connection, const Packet& packet);
    void step_agent(Machine& machine, const agent::Input& input);
    void carry_out(Machine& machine, const agent::Effect& effect);
    void arm_agent(Machine& machine);
    void end_agent(Machine& machine, int code);
    void open_store(Machine& machine, const std::string& host);
    /// Runs `action` after `delay` unless that process is gone by then.
    void later(Machine& machine, Duration delay, Action action);
    /// What the agent's process does itself: now, or when it runs again.
    void in_agent(Machine& machine, Action action);
    void later_in_agent(Machine& machine, Duration delay, Action action);
    [[nodiscard]] std::string name_of(const Machine& machine) const;

    // Workers.
    void start_workers(Machine& machine, const agent::StartWorkers& effect);
    void plan_life(Machine& machine, const FakeWorker& worker);
    void ask_workers(Machine& machine, const agent::AskWorkersToLeave& effect);
    void signal_workers(Machine& machine, const agent::SignalWorkers& effect);
    void end_stopped_worker(Machine& machine, FakeWorker& worker, rdzv::Evidence evidence);
    void empty_generation(Machine& machine, Generation generation);
    void end_worker(Machine& machine, std::uint64_t worker, rdzv::Evidence evidence);
    void keeper_says(Machine& machine, agent::Input input);
    [[nodiscard]] Duration local_delay();

    // Faults.
    void plan_fault();
    void inject_fault();
    void crash_worker(Machine& machine);
    void kill_node(Machine& machine);
    void break_connection(Machine& machine, PacketKind kind);
    void clog_connection(Machine& machine);
    void stall_agent(Machine& machine);
    void signal_agent(Machine& machine, int signal);
    void signal_everything();
    void lose_keeper(Machine& machine);
    void restart_rendezvous();
    void maybe_return(Machine& machine);
    [[nodiscard]] Machine* draw_machine();
    [[nodiscard]] bool has_faults() const { return events_.now() < faults_end_; }

    [[nodiscard]] Duration draw(Duration most);
    [[nodiscard]] bool percent(int percent);
    void trace(const std::string& who, const std::string& text);

    SimOptions options_;
    Rng rng_;
    EventQueue events_;
    TraceLog log_;
    Checker checker_;
    Network network_;
    std::unique_ptr<rdzv::Coordinator> coordinator_;
    std::optional<Instant> rendezvous_tick_at_;
    Instant rendezvous_up_at_{};
    std::set<ConnectionId> served_;  ///< connections that the present daemon knows
    std::vector<Machine> machines_;
    Instant faults_end_{};
    std::uint64_t last_worker_ = 0;
    std::uint16_t last_port_ = 1000;
    bool has_restarted_rendezvous_ = false;
};

}  // namespace ddprun::sim
