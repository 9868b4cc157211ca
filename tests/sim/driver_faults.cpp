// What goes wrong.

#include <csignal>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/sim/driver.hpp"

namespace ddprun::sim {

void Simulation::plan_fault() {
    if (options_.faults.sum() == 0) {
        return;
    }
    const Duration pause = draw(options_.fault_every * 2);
    if (events_.now() + pause >= faults_end_) {
        return;
    }
    events_.after(pause, [this] {
        inject_fault();
        plan_fault();
    });
}

Machine* Simulation::draw_machine() {
    std::vector<Machine*> alive;
    for (Machine& machine : machines_) {
        if (machine.supervisor != nullptr) {
            alive.push_back(&machine);
        }
    }
    return alive.empty() ? nullptr : alive[rng_.below(alive.size())];
}

void Simulation::inject_fault() {
    int drawn = static_cast<int>(rng_.below(static_cast<std::uint64_t>(options_.faults.sum())));
    const auto is_drawn = [&drawn](int weight) {
        drawn -= weight;
        return drawn < 0 && drawn >= -weight;
    };
    Machine* machine = draw_machine();
    if (machine == nullptr) {
        return;
    }
    const FaultWeights& weights = options_.faults;
    if (is_drawn(weights.worker_crash)) {
        crash_worker(*machine);
    } else if (is_drawn(weights.worker_exits_early)) {
        if (!machine->workers.empty()) {
            rdzv::Evidence evidence;
            evidence.exit_code = 0;
            end_worker(*machine, machine->workers.front().id, evidence);
        }
    } else if (is_drawn(weights.node_kill)) {
        kill_node(*machine);
    } else if (is_drawn(weights.connection_reset)) {
        break_connection(*machine, PacketKind::Reset);
    } else if (is_drawn(weights.connection_end)) {
        break_connection(*machine, PacketKind::EndOfStream);
    } else if (is_drawn(weights.connection_clog)) {
        clog_connection(*machine);
    } else if (is_drawn(weights.agent_signal)) {
        signal_agent(*machine, rng_.chance(1, 2) ? SIGTERM : SIGINT);
    } else if (is_drawn(weights.signal_everything)) {
        signal_everything();
    } else if (is_drawn(weights.keeper_loss)) {
        lose_keeper(*machine);
    } else if (is_drawn(weights.rendezvous_restart)) {
        restart_rendezvous();
    } else if (is_drawn(weights.rendezvous_held_up)) {
        trace("fault", "the rendezvous was held up");
        step_rendezvous(rdzv::HeldUp{draw(Milliseconds(2000))});
    } else {
        stall_agent(*machine);
    }
}

void Simulation::crash_worker(Machine& machine) {
    if (machine.workers.empty()) {
        return;
    }
    const FakeWorker& worker = machine.workers[rng_.below(machine.workers.size())];
    rdzv::Evidence evidence;
    const int signals[] = {SIGKILL, SIGSEGV, SIGABRT, SIGTERM, SIGINT};
    if (rng_.chance(1, 2)) {
        evidence.exit_code = 1 + static_cast<int>(rng_.below(255));
    } else {
        evidence.signal = signals[rng_.below(5)];
    }
    trace("fault", fmt::format("rank {} on {} crashes", worker.rank.value(), name_of(machine)));
    end_worker(machine, worker.id, std::move(evidence));
}

void Simulation::kill_node(Machine& machine) {
    trace("fault", fmt::format("{} is killed", name_of(machine)));
    machine.is_disturbed = true;
    for (const FakeWorker& worker : machine.workers) {
        checker_.worker_ended(worker.digest, worker.rank, false);
    }
    machine.workers.clear();
    machine.supervisor.reset();
    checker_.agent_ended(machine);
    if (machine.connection.has_value()) {
        const std::uint64_t how = rng_.below(10);
        if (how < 2) {
            network_.fall_silent(*machine.connection);
        } else {
            network_.close_at_node(*machine.connection,
                                   how < 4 ? PacketKind::Reset : PacketKind::EndOfStream);
        }
    }
    machine.connection.reset();
    maybe_return(machine);
}

void Simulation::maybe_return(Machine& machine) {
    if (!has_faults() || !percent(options_.returns_percent)) {
        return;
    }
    const int index = machine.index;
    events_.after(draw(Milliseconds(5000)), [this, index] { boot(index); });
}

void Simulation::break_connection(Machine& machine, PacketKind kind) {
    if (!machine.connection.has_value()) {
        return;
    }
    trace("fault",
          fmt::format("connection {} of {} breaks", machine.connection->value(), name_of(machine)));
    machine.is_disturbed = true;
    machine.is_lied_about |= kind == PacketKind::EndOfStream;
    network_.cut(*machine.connection, kind);
}

void Simulation::clog_connection(Machine& machine) {
    if (!machine.connection.has_value()) {
        return;
    }
    const Duration time = draw(Milliseconds(3000));
    trace("fault", fmt::format("connection {} of {} is clogged", machine.connection->value(),
                               name_of(machine)));
    machine.is_disturbed = true;
    network_.clog(*machine.connection, time);
}

/// Stopped by a debugger, or starved: up to three leases long.
void Simulation::stall_agent(Machine& machine) {
    if (machine.is_stalled) {
        return;
    }
    trace("fault", fmt::format("{} stalls", name_of(machine)));
    machine.is_disturbed = true;
    machine.is_stalled = true;
    later(machine, draw(options_.limits.lease * 3), [this](Machine& same) {
        trace("fault", fmt::format("{} runs on", name_of(same)));
        same.is_stalled = false;
        while (same.supervisor != nullptr && !same.waits_for_agent.empty()) {
            const Action action = std::move(same.waits_for_agent.front());
            same.waits_for_agent.pop_front();
            action(same);
        }
    });
}

void Simulation::signal_agent(Machine& machine, int signal) {
    trace("fault", fmt::format("{} gets signal {}", name_of(machine), signal));
    machine.was_signalled = true;
    checker_.note_signal();
    in_agent(machine,
             [this, signal](Machine& same) { step_agent(same, agent::Signalled{signal}); });
}

void Simulation::signal_everything() {
    trace("fault", "everything gets SIGTERM");
    for (Machine& machine : machines_) {
        if (machine.supervisor == nullptr) {
            continue;
        }
        for (const FakeWorker& worker : machine.workers) {
            if (worker.ignores_sigterm) {
                continue;
            }
            const std::uint64_t id = worker.id;
            later(machine, draw(Milliseconds(50)), [this, id](Machine& same) {
                rdzv::Evidence evidence;
                evidence.signal = SIGTERM;
                end_worker(same, id, evidence);
            });
        }
        later(machine, draw(Milliseconds(60)),
              [this](Machine& same) { signal_agent(same, SIGTERM); });
    }
}

void Simulation::lose_keeper(Machine& machine) {
    trace("fault", fmt::format("{} loses its keeper", name_of(machine)));
    if (machine.is_keeper_gone) {
        return;
    }
    machine.keeper += 1;
    machine.is_keeper_gone = true;
    for (const FakeWorker& worker : machine.workers) {
        checker_.worker_ended(worker.digest, worker.rank, false);
    }
    machine.workers.clear();
    keeper_says(machine, agent::KeeperLost{});
}

void Simulation::restart_rendezvous() {
    trace("fault", "the rendezvous dies and another one starts");
    has_restarted_rendezvous_ = true;
    rendezvous_up_at_ = events_.now() + draw(Milliseconds(5000));
    served_.clear();
    rendezvous_tick_at_.reset();
    coordinator_ = std::make_unique<rdzv::Coordinator>(
        JobId("sim"), rdzv::CoordinatorOptions{.limits = options_.limits}, Rng(rng_.next()));
    checker_.forget_run();
    for (Machine& machine : machines_) {
        if (machine.connection.has_value()) {
            machine.is_disturbed = true;
            network_.close_at_rendezvous(*machine.connection);
        }
    }
}

}  // namespace ddprun::sim
