// The simulation injects faults.

#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/wire/codec.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

Machine* Simulation::draw_machine(Dice& dice) {
    // Always one draw, so that the rest of the fault does not depend on who lives.
    const std::uint64_t drawn = dice.next();
    std::vector<Machine*> alive;
    for (Machine& machine : machines_) {
        if (machine.supervisor != nullptr) {
            alive.push_back(&machine);
        }
    }
    return alive.empty() ? nullptr : alive[drawn % alive.size()];
}

void Simulation::disturb(Machine& machine, Instant until) {
    machine.disturbed_until = std::max({machine.disturbed_until, until, events_.now()});
}

void Simulation::disturb_all(Instant until) {
    calm_since_ = std::max({calm_since_, until, events_.now()});
}

/// Faults of the daemons and their journal alone may cost no node anything.
void Simulation::note_fault(FaultKind kind) {
    const bool is_of_several = kind == FaultKind::RendezvousForgets ||
                               kind == FaultKind::RendezvousPause ||
                               kind == FaultKind::JournalFails || kind == FaultKind::EtcdSlow ||
                               kind == FaultKind::EtcdCutOff;
    const bool is_of_daemons =
        kind == FaultKind::RendezvousRestart || (has_several() && is_of_several);
    (is_of_daemons ? last_daemon_fault_at_ : last_fault_at_) = events_.now();
}

void Simulation::inject(const PlannedFault& fault) {
    Dice dice(fault.seed);
    trace("fault", fmt::format("#{} {}", fault.index,
                               fault_kinds()[static_cast<std::size_t>(fault.kind)].name));
    note_fault(fault.kind);
    Machine* machine = draw_machine(dice);
    if (machine != nullptr) {
        inject_at_node(fault, *machine, dice);
        if (machine->supervisor != nullptr && machine->connection.has_value()) {
            inject_at_network(fault, *machine, dice);
        }
    }
    inject_at_rendezvous(fault, dice);
}

void Simulation::inject_at_node(const PlannedFault& fault, Machine& machine, Dice& dice) {
    switch (fault.kind) {
        case FaultKind::WorkerCrash:
            crash_worker(machine, dice);
            break;
        case FaultKind::WorkerExitsEarly:
            exit_early(machine);
            break;
        case FaultKind::ExecFails:
            machine.fails_to_execute = true;
            break;
        case FaultKind::NodeKill:
            kill_node(machine, dice, false);
            break;
        case FaultKind::NodeRenamed:
            kill_node(machine, dice, true);
            break;
        case FaultKind::TwoOfOneName:
            take_name(machine, dice);
            break;
        case FaultKind::AgentSignal:
            signal_agent(machine, dice.chance(1, 2) ? SIGTERM : SIGINT);
            break;
        case FaultKind::SignalEverything:
            signal_everything(dice);
            break;
        case FaultKind::KeeperLoss:
            lose_keeper(machine);
            break;
        case FaultKind::AgentStall:
            // Mostly about as long as a lease: that is where it matters.
            stall_agent(machine, dice.chance(1, 10) ? dice.up_to(Milliseconds(60000))
                                                    : dice.up_to(options_.limits.lease * 3));
            break;
        default:
            break;
    }
}

void Simulation::inject_at_network(const PlannedFault& fault, Machine& machine, Dice& dice) {
    const Duration time = dice.up_to(Milliseconds(3000));
    switch (fault.kind) {
        case FaultKind::ConnectionReset:
            break_connection(machine, PacketKind::Reset);
            break;
        case FaultKind::ConnectionEnd:
            break_connection(machine, PacketKind::EndOfStream);
            break;
        case FaultKind::ConnectionClog:
            clog_connection(machine, time);
            break;
        case FaultKind::CutUp:
            cut_off(machine, true, false, time);
            break;
        case FaultKind::CutDown:
            cut_off(machine, false, true, time);
            break;
        case FaultKind::Partition: {
            const int percent = dice.between(10, 100);
            const Duration long_time = dice.up_to(Milliseconds(10000));
            for (Machine& one : machines_) {
                if (one.supervisor != nullptr && dice.percent(percent)) {
                    cut_off(one, true, true, long_time);
                }
            }
            break;
        }
        case FaultKind::LinkFlap:
            flap_link(machine, dice);
            break;
        case FaultKind::DelaySpike:
            slow_network(dice);
            break;
        case FaultKind::ReplayedReport:
            replay_report(machine, dice);
            break;
        default:
            break;
    }
}

void Simulation::inject_at_rendezvous(const PlannedFault& fault, Dice& dice) {
    switch (fault.kind) {
        case FaultKind::RendezvousRestart:
            kill_rendezvous(dice, false);
            break;
        case FaultKind::RendezvousForgets:
            kill_rendezvous(dice, true);
            break;
        case FaultKind::RendezvousPause:
            pause_rendezvous(dice);
            break;
        case FaultKind::JournalFails:
            fail_journal(dice);
            break;
        case FaultKind::Stranger:
            let_stranger_speak(dice);
            break;
        case FaultKind::EtcdSlow:
            slow_etcd(dice);
            break;
        case FaultKind::EtcdCutOff:
            cut_off_from_etcd(dice);
            break;
        case FaultKind::DaemonCutOff:
            cut_off_daemon(dice);
            break;
        default:
            break;
    }
}

// --------------------------------------------------------------------------------- workers, nodes

void Simulation::crash_worker(Machine& machine, Dice& dice) {
    const std::uint64_t drawn = dice.next();
    rdzv::Evidence evidence;
    const int signals[] = {SIGKILL, SIGSEGV, SIGABRT, SIGTERM, SIGINT};
    if (dice.chance(1, 2)) {
        evidence.exit_code = dice.between(1, 255);
    } else {
        evidence.signal = signals[dice.below(5)];
    }
    if (dice.percent(options_.progress_percent)) {
        evidence.progress = dice.below(3);
    }
    if (machine.workers.empty()) {
        return;
    }
    const FakeWorker worker = machine.workers[drawn % machine.workers.size()];
    trace("fault", fmt::format("rank {} on {} crashes", worker.rank.value(), name_of(machine)));
    end_worker(machine, worker.id, std::move(evidence));
    disappoint_peers(worker.digest);
}

void Simulation::exit_early(Machine& machine) {
    if (!machine.workers.empty()) {
        rdzv::Evidence evidence;
        evidence.exit_code = 0;
        end_worker(machine, machine.workers.front().id, evidence);
    }
}

void Simulation::kill_node(Machine& machine, Dice& dice, bool is_renamed) {
    const std::uint64_t how = dice.below(10);
    trace("fault", fmt::format("{} is killed", name_of(machine)));
    const std::string digest = machine.workers.empty() ? "" : machine.workers.front().digest;
    expect_notice_of_death(machine, how < 4);
    disturb(machine, events_.now());
    drop_workers(machine);
    machine.supervisor.reset();
    alive_ -= 1;
    if (machine.connection.has_value()) {
        if (how < 2) {
            network_.fall_silent(*machine.connection);
        } else {
            network_.close_at_node(*machine.connection,
                                   how < 4 ? PacketKind::Reset : PacketKind::EndOfStream);
        }
    }
    machine.connection.reset();
    machine.is_connected = false;
    machine.is_accepted = false;
    if (!digest.empty()) {
        disappoint_peers(digest);
    }
    if (is_renamed) {
        machine.node = NodeId(fmt::format("n{}r{}", machine.index, machine.incarnation));
    }
    maybe_return(machine, dice);
}

void Simulation::maybe_return(Machine& machine, Dice& dice) {
    const Duration pause = dice.up_to(Milliseconds(5000));
    if (has_faults() && dice.percent(options_.returns_percent)) {
        events_.after(pause, [this, index = machine.index] { boot(index); });
    }
}

/// Stopped by a debugger, or starved.
void Simulation::stall_agent(Machine& machine, Duration time) {
    if (machine.is_stalled) {
        return;
    }
    trace("fault", fmt::format("{} stalls", name_of(machine)));
    disturb(machine, events_.now() + time);
    machine.is_stalled = true;
    if (machine.standbys) {
        machine.standbys->excuse();
    }
    later(machine, time, [this](Machine& same) {
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
    checker_.note_leaving();
    if (!machine.signalled_at.has_value()) {
        machine.signalled_at = events_.now();
        machine.signalled_digest = machine.workers.empty() ? "" : machine.workers.front().digest;
    }
    in_agent(machine,
             [this, signal](Machine& same) { step_agent(same, agent::Signalled{signal}); });
}

void Simulation::signal_everything(Dice& dice) {
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
            later(machine, dice.up_to(Milliseconds(50)), [this, id](Machine& same) {
                rdzv::Evidence evidence;
                evidence.signal = SIGTERM;
                end_worker(same, id, evidence);
            });
        }
        later(machine, dice.up_to(Milliseconds(60)),
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
    drop_workers(machine);
    keeper_says(machine, agent::KeeperLost{});
}

// ---------------------------------------------------------------------------------------- network

void Simulation::break_connection(Machine& machine, PacketKind kind) {
    trace("fault",
          fmt::format("connection {} of {} breaks", machine.connection->value(), name_of(machine)));
    disturb(machine, events_.now());
    machine.is_lied_about |= kind == PacketKind::EndOfStream;
    network_.cut(*machine.connection, kind);
}

void Simulation::clog_connection(Machine& machine, Duration time) {
    trace("fault", fmt::format("connection {} of {} is clogged", machine.connection->value(),
                               name_of(machine)));
    disturb(machine, events_.now() + time);
    network_.clog(*machine.connection, time);
}

void Simulation::cut_off(Machine& machine, bool is_up, bool is_down, Duration time) {
    trace("fault", fmt::format("{} is cut off{}{}", name_of(machine), is_up ? ", up" : "",
                               is_down ? ", down" : ""));
    const Instant until = events_.now() + time;
    disturb(machine, until);
    if (is_up) {
        network_.block(machine.index, true, until);
    }
    if (is_down) {
        network_.block(machine.index, false, until);
    }
    if (is_up && is_down) {
        doubt_end_ = std::max(doubt_end_, until + options_.limits.self_doubt);
    }
}

void Simulation::flap_link(Machine& machine, Dice& dice) {
    const int breaks = dice.between(2, 6);
    Duration at{};
    for (int i = 0; i < breaks; ++i) {
        later(machine, at, [this](Machine& same) {
            if (same.connection.has_value()) {
                break_connection(same, PacketKind::Reset);
            }
        });
        at += dice.up_to(Milliseconds(500));
    }
    disturb(machine, events_.now() + at);
}

void Simulation::slow_network(Dice& dice) {
    const Milliseconds most = dice.between(Milliseconds(0), Milliseconds(2000));
    const Instant until = events_.now() + dice.up_to(Milliseconds(5000));
    trace("fault", fmt::format("messages take up to {} ms longer", most.count()));
    network_.slow_down(most, until);
    disturb_all(until + most);
    doubt_end_ = std::max(doubt_end_, until + most + options_.limits.self_doubt);
    for (Machine& machine : machines_) {
        if (!are_delays_short(machine)) {
            disturb(machine, until + most);
        }
    }
}

/// The network repeats an old report, which it must not do and a rendezvous survives.
void Simulation::replay_report(Machine& machine, Dice& dice) {
    const std::uint64_t drawn = dice.next();
    Daemon* const daemon = deciding();
    const rdzv::Run* run = decided_run();
    if (run == nullptr || daemon->is_paused || machine.reports.empty() ||
        daemon->host->job_of(*machine.connection) == nullptr) {
        return;
    }
    const OldReport& report = machine.reports[drawn % machine.reports.size()];
    const std::optional<Generation> held = machine.supervisor->held_generation();
    const bool is_old = report.token == run->token && report.generation < run->current.number &&
                        (!held.has_value() || report.generation < *held);
    if (is_old) {
        trace("fault", fmt::format("{} seems to repeat itself", name_of(machine)));
        receive(*daemon, *machine.connection, report.message);
    }
}

// ------------------------------------------------------------------------------------- rendezvous

/// Mostly the one that decides.
Daemon& Simulation::draw_daemon(Dice& dice) {
    if (!has_several()) {
        return daemons_.front();
    }
    const bool is_any = dice.chance(1, 3);
    const std::uint64_t drawn = dice.below(daemons_.size());
    Daemon* const leader = deciding();
    return is_any || leader == nullptr ? daemons_[drawn] : *leader;
}

void Simulation::kill_rendezvous(Dice& dice, bool forgets) {
    Daemon& daemon = draw_daemon(dice);
    const bool is_power_off = dice.chance(1, 4);
    const Duration pause = dice.up_to(Milliseconds(dice.chance(1, 2) ? 500 : 5000));
    if (!daemon.is_up) {
        return;
    }
    // Etcd outlives its clients.
    const bool loses_journal = forgets && !has_several();
    trace("fault", fmt::format("{} dies; the next one {}", daemon.name,
                               loses_journal ? "knows nothing" : "has its journal"));
    if (!loses_journal) {
        expect_nothing_restarts(daemon);
    }
    daemon.life += 1;
    daemon.is_up = false;
    daemon.up_at = events_.now() + pause;
    daemon.is_paused = false;
    daemon.waits_for_it.clear();
    daemon.dead_connections = network_.last_connection();
    network_.release_handshakes(daemon.index);
    if (!has_several()) {
        const Memory memory =
            loses_journal ? Memory::None : (daemon.is_behind ? Memory::Older : Memory::Whole);
        checker_.daemon_died(memory);
        is_record_old_ |= memory == Memory::Older;
        has_forgotten_ |= memory != Memory::Whole;
        disturb_all(daemon.up_at);
    } else if (daemon.is_deciding()) {
        disturb_all(events_.now());
    }
    end_deciding(daemon);
    daemon.host.reset();
    daemon.term.reset();
    daemon.term_timer_at.reset();
    daemon.watch = 0;
    daemon.is_watched = false;
    if (loses_journal) {
        disk_ = JournalEntry{};
    }
    for (Machine& machine : machines_) {
        if (machine.connection.has_value() && !is_power_off &&
            network_.daemon_of(*machine.connection) == daemon.index) {
            network_.close_at_rendezvous(*machine.connection);
        }
    }
    events_.at(daemon.up_at, [this, &daemon, life = daemon.life] {
        if (life == daemon.life) {
            return_rendezvous(daemon);
        }
    });
}

void Simulation::return_rendezvous(Daemon& daemon) {
    open_daemon(daemon);
    for (const Machine& machine : machines_) {
        if (machine.connection.has_value() && machine.connection <= daemon.dead_connections &&
            network_.daemon_of(*machine.connection) == daemon.index) {
            network_.close_at_rendezvous(*machine.connection, PacketKind::Reset);
        }
    }
    if (!has_several()) {
        judge_return(daemon);
    }
}

void Simulation::pause_rendezvous(Dice& dice) {
    Daemon& daemon = draw_daemon(dice);
    const bool is_whole_machine = dice.chance(1, 2);
    const Duration time =
        dice.chance(1, 8) ? dice.up_to(Milliseconds(60000)) : dice.up_to(Milliseconds(3000));
    if (!daemon.is_up || daemon.is_paused) {
        return;
    }
    trace("fault", fmt::format("{} is stopped for a while", daemon.name));
    if (has_several()) {
        expect_nothing_restarts(daemon);
    }
    daemon.paused_until = events_.now() + time;
    if (!has_several()) {
        disturb_all(daemon.paused_until);
    } else if (deciding() == &daemon) {
        disturb_all(std::min(daemon.paused_until, events_.now() + leader_lease()));
    }
    daemon.is_paused = true;
    daemon.paused_since = events_.now();
    network_.hold_handshakes(daemon.index, daemon.paused_until);
    for (Machine& machine : machines_) {
        // Nothing was taken in meanwhile; it is sent again, a little later.
        const Duration again = dice.up_to(Milliseconds(300));
        const bool is_there = machine.connection.has_value() &&
                              network_.daemon_of(*machine.connection) == daemon.index;
        if (!is_whole_machine || !is_there) {
            continue;
        }
        network_.hold_up(*machine.connection, daemon.paused_until + again);
        if (time < options_.limits.lease * 2) {
            // Too short for the daemon to notice, perhaps: then it was a long delay like any other.
            disturb(machine, daemon.paused_until + Milliseconds(300));
        }
    }
    events_.at(daemon.paused_until, [this, &daemon, life = daemon.life] {
        if (life == daemon.life) {
            resume_rendezvous(daemon);
        }
    });
}

/// As in the real one, sockets or timers may be first.
void Simulation::resume_rendezvous(Daemon& daemon) {
    trace("fault", fmt::format("{} runs on", daemon.name));
    daemon.is_paused = false;
    const Instant now = events_.now();
    for (Machine& machine : machines_) {
        if (!is_undisturbed(machine, daemon.paused_since)) {
            disturb(machine, now);  // the daemon hears of that fault only now
        }
    }
    if (has_several() && deciding() == &daemon) {
        disturb_all(now);  // it woke within its lease: no daemon takes over
        expected_digest_.clear();
    }
    const std::uint64_t life = daemon.life;
    const auto fire = [&] {
        if (daemon.timer_at.has_value() && *daemon.timer_at <= now) {
            rendezvous_timer_fires(daemon, *daemon.timer_at);
        }
    };
    if (dice_.chance(1, 2)) {
        fire();
    }
    if (life == daemon.life && run_waiting(daemon)) {
        fire();
    }
    if (life == daemon.life && daemon.term_timer_at.has_value() && *daemon.term_timer_at <= now) {
        term_timer_fires(daemon, *daemon.term_timer_at);
    }
}

/// A full disk; or no majority of etcds, which end no lease meanwhile and count all anew after.
void Simulation::fail_journal(Dice& dice) {
    const Duration time = dice.up_to(Milliseconds(10000));
    if (has_several()) {
        if (events_.now() < etcd_away_until_) {
            return;
        }
        trace("fault", "etcd is away");
        etcd_away_until_ = events_.now() + time;
        events_.at(etcd_away_until_, [this] {
            trace("fault", "etcd is back");
            etcd_.come_back(events_.now());
        });
        return;
    }
    const bool hangs = dice.chance(1, 3);
    if (!is_disk_well() || options_.is_in_process) {
        return;
    }
    trace("fault", hangs ? "the journal's disk hangs" : "the journal's disk is full");
    (hangs ? disk_hangs_until_ : disk_full_until_) = events_.now() + time;
    if (hangs) {
        disturb_all(disk_hangs_until_);  // what is told waits for it, if not for long
    }
}

void Simulation::slow_etcd(Dice& dice) {
    const Duration time = dice.up_to(Milliseconds(5000));
    trace("fault", "etcd is slow");
    etcd_slow_until_ = std::max(etcd_slow_until_, events_.now() + time);
}

void Simulation::cut_off_from_etcd(Dice& dice) {
    Daemon& daemon = draw_daemon(dice);
    const Duration time = dice.up_to(Milliseconds(6000));
    trace("fault", fmt::format("{} is cut off from etcd", daemon.name));
    expect_nothing_restarts(daemon);
    daemon.cut_off_until = std::max(daemon.cut_off_until, events_.now() + time);
}

/// It may go on leading, and no node hears of it.
void Simulation::cut_off_daemon(Dice& dice) {
    const Daemon& daemon = draw_daemon(dice);
    const Instant until = events_.now() + dice.up_to(Milliseconds(5000));
    trace("fault", fmt::format("{} is cut off from all nodes", daemon.name));
    network_.block_daemon(daemon.index, until);
    disturb_all(until);
    doubt_end_ = std::max(doubt_end_, until + options_.limits.self_doubt);
    for (Machine& machine : machines_) {
        disturb(machine, until);
    }
}

// ---------------------------------------------------------------------------------------- content

/// Two jobs with one id, or one --node-id given twice.
void Simulation::take_name(Machine& machine, Dice& dice) {
    const std::uint64_t how = dice.next();
    const NodeId taken = machines_[how % machines_.size()].node;
    if (taken != machine.node) {
        kill_node(machine, dice, false);
        machine.node = taken;
        for (Machine& one : machines_) {
            one.has_namesake |= one.node == taken;
        }
        trace("fault",
              fmt::format("machine {} is called {} from now on", machine.index, taken.value()));
    }
}

void Simulation::let_stranger_speak(Dice& dice) {
    const std::string name = fmt::format("stranger{}", dice.below(3));
    const bool joins = dice.chance(1, 2);
    const bool is_larger = dice.chance(1, 2);
    const std::uint64_t word = dice.next();
    Daemon* const daemon = deciding();
    const rdzv::Run* run = decided_run();
    if (run == nullptr || daemon->is_paused || options_.is_in_process) {
        return;
    }
    const std::optional<Instant> deadline = daemon->job()->coordinator().next_deadline();
    const bool is_due = deadline.has_value() && *deadline <= events_.now();
    if (!joins && is_due) {
        return;  // something else may happen in the same step
    }
    if (!joins) {
        speak_without_joining(*daemon, word);
    } else if (std::holds_alternative<rdzv::Running>(run->phase)) {
        let_stranger_join(*daemon, is_larger, name);  // else it would open a run of its own
    }
    if (options_.has_preflight) {
        let_unfit_speak(*daemon, word, name);
    }
}

/// A second ddprun on a machine where one lives already, or one of no machine of ours.
void Simulation::let_unfit_speak(Daemon& daemon, std::uint64_t word, const std::string& name) {
    const rdzv::Run* const run = daemon.run();
    NodeId node(name);
    if (run != nullptr && !run->nodes.empty() && word % 4 != 0) {
        const auto known = static_cast<std::ptrdiff_t>(word / 4 % run->nodes.size());
        node = std::next(run->nodes.begin(), known)->first;
    }
    trace("fault", fmt::format("a ddprun with the name of {} is not fit", node.value()));
    const ConnectionId connection = network_.connect(0, daemon.index);
    strangers_.insert(connection);
    const rdzv::Unfit unfit{.job = JobId("sim"),
                            .node = node,
                            .process = "stranger",
                            .hostname = node.value(),
                            .why = "its fan"};
    receive(daemon, connection, rdzv::AgentMessage(unfit));
}

void Simulation::let_stranger_join(Daemon& daemon, bool is_larger, const std::string& name) {
    rdzv::Join join;
    join.job = JobId("sim");
    join.node = NodeId(name);
    join.hostname = name;
    join.settings = daemon.run()->settings;
    join.store = {.host = "10.0.1.1", .port = 1};
    if (is_larger) {
        join.settings.max_nodes += 1;
    } else {
        join.settings.max_restarts += 1;
    }
    trace("fault", "somebody joins with other settings");
    const rdzv::Run* run = daemon.run();
    const ConnectionId connection = network_.connect(0, daemon.index);
    strangers_.insert(connection);
    const Generation generation = run->current.number;
    const std::size_t nodes = run->nodes.size();
    receive(daemon, connection, rdzv::AgentMessage(join));
    run = daemon.run();
    if (run->current.number != generation || run->nodes.size() != nodes ||
        !std::holds_alternative<rdzv::Running>(run->phase)) {
        checker_.violate("S15", "a join that was to be refused changed the run");
    }
}

/// A daemon ignores a node that has not joined, whatever it says (S13: here, past the handshake).
void Simulation::speak_without_joining(Daemon& daemon, std::uint64_t word) {
    const Generation generation = daemon.run()->current.number;
    rdzv::WorkerFailed failed;
    failed.generation = generation;
    const rdzv::AgentMessage words[] = {
        rdzv::WorkerFinished{.generation = generation, .local_rank = LocalRank(0)},
        failed,
        rdzv::Stopped{.generation = generation, .store = {}},
        rdzv::Leave{SIGTERM},
        rdzv::Unkillable{generation},
        rdzv::Goodbye{},
        rdzv::Beat{1}};
    const rdzv::AgentMessage& message = words[word % std::size(words)];
    trace("fault", "somebody says without joining: " + message_text(message));
    const auto said = [&] {
        return rdzv::encode(daemon.record(events_.now()).value_or(rdzv::RunRecord{}));
    };
    const std::string before = said();
    has_last_step_acted_ = false;
    rdzv::DaemonEffects effects;
    daemon.host->receives(events_.now(), ConnectionId(0), message, effects);
    carry_out(daemon, effects);
    if (has_last_step_acted_ || said() != before) {
        checker_.violate("S13", "somebody who has not joined was heard: " + message_text(message));
    }
}

}  // namespace ddprun::sim
