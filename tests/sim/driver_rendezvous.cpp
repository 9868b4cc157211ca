// What the daemon does around its coordinator: connections, its timer, hold-ups, the journal.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/run_record.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

/// A process of its own.
void Simulation::open_daemon(Daemon& daemon) {
    daemon.is_up = true;
    if (has_several()) {
        compete(daemon);
    } else {
        open_coordinator(daemon, disk_);
    }
}

/// Decides from now on, beginning with what the last one left in the journal.
void Simulation::open_coordinator(Daemon& daemon, const JournalEntry& entry) {
    const Instant now = events_.now();
    daemon.reign += 1;
    daemon.coordinator = std::make_unique<rdzv::Coordinator>(
        JobId("sim"),
        rdzv::CoordinatorOptions{.limits = options_.limits, .has_leases = !options_.is_in_process},
        Rng(dice_.next()));
    if (!entry.record.has_value()) {
        return;
    }
    const Result<rdzv::RunRecord> record =
        rdzv::decode_run_record(rdzv::encode(*entry.record), options_.limits);
    if (!record.has_value()) {
        checker_.violate("codec", record.error().what);
        return;
    }
    const Result<void> restored = daemon.coordinator->restore(now, record.value());
    if (!restored.has_value()) {
        checker_.violate("journal", restored.error().what);
    }
    restored_at_ = now;
    trace(daemon.name, "goes on with the journal's run");
    if (!daemon.has_journal) {
        tell_durability(daemon, "no space left on device");
    }
    arm_rendezvous(daemon);
}

/// Whatever it was about to do is not done.
void Simulation::close_coordinator(Daemon& daemon) {
    daemon.reign += 1;
    daemon.coordinator.reset();
    daemon.tick_at.reset();
    daemon.served.clear();
    daemon.held.clear();
    daemon.fault.clear();
    daemon.is_writing = false;
    daemon.is_erasing = false;
    daemon.orders = daemon.written = daemon.awaited = 0;
}

/// The run is over and told, or nobody came back to it.
void Simulation::forget_run(Daemon& daemon) {
    daemon.coordinator = std::make_unique<rdzv::Coordinator>(
        JobId("sim"),
        rdzv::CoordinatorOptions{.limits = options_.limits, .has_leases = !options_.is_in_process},
        Rng(dice_.next()));
    daemon.is_erasing = true;
    persist(daemon, false);
    checker_.forget_run();
}

void Simulation::in_daemon(Daemon& daemon, std::function<void()> action) {
    if (daemon.is_paused) {
        daemon.waits_for_it.push_back(std::move(action));
    } else {
        action();
    }
}

void Simulation::later_in_daemon(Daemon& daemon, Duration delay,
                                 std::function<void(Daemon&)> action) {
    events_.after(delay, [this, index = daemon.index, life = daemon.life,
                          action = std::move(action)]() mutable {
        Daemon& same = this->daemon(index);
        if (same.life == life && same.is_up) {
            in_daemon(same, [&same, action = std::move(action)] { action(same); });
        }
    });
}

Daemon* Simulation::deciding() {
    const Daemon* found = std::as_const(*this).deciding();
    return found == nullptr ? nullptr : &daemon(found->index);
}

const Daemon* Simulation::deciding() const {
    for (const Daemon& daemon : daemons_) {
        if (daemon.is_up && daemon.coordinator != nullptr && may_decide(daemon)) {
            return &daemon;
        }
    }
    return nullptr;
}

const rdzv::Run* Simulation::decided_run() const {
    const Daemon* daemon = deciding();
    return daemon != nullptr ? daemon->coordinator->run() : nullptr;
}

void Simulation::rendezvous_receives(Daemon& daemon, ConnectionId connection,
                                     const Packet& packet) {
    if (connection <= daemon.dead_connections) {
        network_.close_at_rendezvous(connection, PacketKind::Reset);
        return;
    }
    if (packet.kind != PacketKind::Message) {
        daemon.parked.erase(connection);
        if (daemon.served.erase(connection) > 0) {
            step_rendezvous(
                daemon,
                rdzv::ConnectionEnded{.connection = connection,
                                      .is_end_of_stream = packet.kind == PacketKind::EndOfStream});
        }
        return;
    }
    const Result<rdzv::AgentMessage> message =
        rdzv::decode_agent_message(packet.body, options_.limits);
    if (!message.has_value()) {
        checker_.violate("codec", message.error().what);
        return;
    }
    take_message(daemon, connection, message.value());
}

void Simulation::take_message(Daemon& daemon, ConnectionId connection,
                              const rdzv::AgentMessage& message) {
    if (daemon.coordinator == nullptr) {
        receive_as_follower(daemon, connection, message);
        return;
    }
    const bool is_first =
        std::holds_alternative<rdzv::Join>(message) || std::holds_alternative<rdzv::Unfit>(message);
    if (is_first && network_.node_of(connection).has_value()) {
        daemon.served.insert(connection);
    } else if (!daemon.served.contains(connection)) {
        return;  // closed meanwhile
    }
    if (!std::holds_alternative<rdzv::Beat>(message)) {
        trace(daemon.name, fmt::format("<- {} {}", connection.value(), message_text(message)));
    }
    step_rendezvous(daemon, rdzv::Received{.connection = connection, .message = message});
}

void Simulation::step_rendezvous(Daemon& daemon, const rdzv::Input& input) {
    const Instant now = events_.now();
    if (!may_decide(daemon)) {
        return;  // what makes it close its connections is about to come
    }
    judge_leadership(daemon);
    if (daemon.coordinator->is_forgettable(now)) {
        forget_run(daemon);
    }
    rdzv::Coordinator& coordinator = *daemon.coordinator;
    const bool had_run = coordinator.run() != nullptr;
    const std::size_t nodes_before = had_run ? coordinator.run()->nodes.size() : 0;
    rdzv::Effects effects;
    checker_.before_step(coordinator, input, now);
    coordinator.step(now, input, effects);
    checker_.after_step(coordinator, input, effects, now);
    carry_out(daemon, effects);
    if (coordinator.run() != nullptr) {
        judge_losses_of_living(*coordinator.run(), nodes_before);
        judge_everybodys_publishing(*coordinator.run());
        judge_hang(*coordinator.run());
    } else if (had_run && coordinator.is_empty()) {
        forget_run(daemon);
        checker_.run_was_given_up();
    }
    arm_rendezvous(daemon);
}

// --------------------------------------------------------------------------------------- effects

void Simulation::carry_out(Daemon& daemon, const rdzv::Effects& effects) {
    take(daemon, effects.now);
    if (effects.record != rdzv::RecordWrite::None) {
        persist(daemon, effects.record == rdzv::RecordWrite::Awaited);
    }
    take(daemon, effects.after_record);
}

/// In order, behind what waits for an earlier record.
void Simulation::take(Daemon& daemon, const std::vector<rdzv::Effect>& effects) {
    for (const rdzv::Effect& effect : effects) {
        const rdzv::Send* send = std::get_if<rdzv::Send>(&effect);
        if (send != nullptr && !daemon.served.contains(send->connection)) {
            checker_.violate("IO",
                             fmt::format("sent to connection {}, which has ended: {}",
                                         send->connection.value(), message_text(send->message)));
        }
        if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
            note_replacement(*close);
        }
        if (const rdzv::Trace* line = std::get_if<rdzv::Trace>(&effect)) {
            trace(daemon.name, line->text);
        } else if (daemon.awaited > daemon.written && !rdzv::is_acknowledgement(effect)) {
            if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
                daemon.served.erase(close->connection);
            }
            daemon.held.push_back({.order = daemon.awaited, .effect = effect});
        } else {
            carry_out(daemon, effect);
        }
    }
}

void Simulation::carry_out(Daemon& daemon, const rdzv::Effect& effect) {
    if (const rdzv::Send* send = std::get_if<rdzv::Send>(&effect)) {
        let_out(daemon, *send);
    } else if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
        close_connection(daemon, *close);
    }
}

void Simulation::let_out(Daemon& daemon, const rdzv::Send& send) {
    if (const rdzv::Run* run = daemon.coordinator->run(); run != nullptr) {
        if (const rdzv::Start* start = std::get_if<rdzv::Start>(&send.message)) {
            judge_start(*run, send, *start);
        } else if (const rdzv::Refused* refused = std::get_if<rdzv::Refused>(&send.message)) {
            judge_refusal(*run, send, *refused);
        }
        judge_durability(daemon, *run, send.message);
    }
    network_.send_to_node(send.connection, rdzv::encode(send.message));
}

/// A message of a machine's own past that came late takes its place, here; a second ddprun, in
/// life.
void Simulation::note_replacement(const rdzv::CloseConnection& close) {
    const std::optional<int> node = network_.node_of(close.connection);
    if (node.has_value() && machine(*node).connection == close.connection) {
        machine(*node).is_replaced |= close.reason.find("replaced") != std::string::npos;
    }
}

void Simulation::close_connection(Daemon& daemon, const rdzv::CloseConnection& close) {
    trace(daemon.name, fmt::format("closes {}: {}", close.connection.value(), close.reason));
    daemon.served.erase(close.connection);
    network_.close_at_rendezvous(close.connection);
}

// --------------------------------------------------------------------------------------- journal

void Simulation::persist(Daemon& daemon, bool is_awaited) {
    if (!daemon.has_journal) {
        return;
    }
    daemon.orders += 1;
    if (is_awaited) {
        daemon.awaited = daemon.orders;
    }
    if (!daemon.is_writing) {
        begin_write(daemon);
    }
}

/// The newest record serves all orders until now.
void Simulation::begin_write(Daemon& daemon) {
    std::optional<rdzv::RunRecord> record = daemon.coordinator->record(events_.now());
    if (!record.has_value() && !daemon.is_erasing) {
        daemon.written = daemon.orders;  // nothing of it must survive
        return;
    }
    daemon.is_erasing = false;
    daemon.is_writing = true;
    if (has_several()) {
        write_to_etcd(daemon, record);
    } else {
        write_to_disk(daemon, std::move(record));
    }
}

void Simulation::write_to_disk(Daemon& daemon, std::optional<rdzv::RunRecord> record) {
    events_.after(dice_.up_to(options_.journal_delay_max),
                  [this, &daemon, life = daemon.life, orders = daemon.orders,
                   entry = JournalEntry{.record = std::move(record)}] {
                      if (life != daemon.life) {
                          return;
                      }
                      disk_ = entry;  // a paused process does not pause its disk
                      in_daemon(daemon, [this, &daemon, life, orders] {
                          if (life == daemon.life) {
                              record_is_written(daemon, orders);
                          }
                      });
                  });
}

void Simulation::record_is_written(Daemon& daemon, std::uint64_t orders) {
    daemon.is_writing = false;
    daemon.written = std::max(daemon.written, orders);
    daemon.is_behind = daemon.is_behind && (!daemon.has_journal || orders < daemon.orders);
    if (daemon.has_journal && daemon.orders > daemon.written) {
        begin_write(daemon);
    }
    let_out_what_waits(daemon);
}

void Simulation::let_out_what_waits(Daemon& daemon) {
    while (!daemon.held.empty() && daemon.held.front().order <= daemon.written) {
        const rdzv::Effect effect = std::move(daemon.held.front().effect);
        daemon.held.pop_front();
        daemon.let_out_at = events_.now();
        carry_out(daemon, effect);
    }
}

/// On change: whether records reach the journal.
void Simulation::tell_durability(Daemon& daemon, const std::string& fault) {
    if (daemon.fault.empty() != fault.empty()) {
        daemon.fault = fault;
        if (has_several() && !fault.empty()) {
            step_rendezvous(daemon, rdzv::HeldUp{});  // who joins is not answered, so does not beat
        }
        step_rendezvous(daemon, rdzv::Durability{fault});
    }
}

// ----------------------------------------------------------------------------------------- timer

void Simulation::arm_rendezvous(Daemon& daemon) {
    const std::optional<Instant> deadline = daemon.coordinator->next_deadline();
    if (!deadline.has_value() || (daemon.tick_at.has_value() && *daemon.tick_at <= *deadline)) {
        return;
    }
    const Instant at = std::max(*deadline, events_.now());
    daemon.tick_at = at;
    events_.at(at, [this, &daemon, at, reign = daemon.reign] {
        if (reign == daemon.reign && daemon.is_up && !daemon.is_paused) {
            rendezvous_timer_fires(daemon, at);
        }
    });
}

void Simulation::rendezvous_timer_fires(Daemon& daemon, Instant at) {
    if (daemon.tick_at != at || !may_decide(daemon)) {
        return;
    }
    daemon.tick_at.reset();
    const std::optional<Instant> due = daemon.coordinator->next_deadline();
    if (due.has_value() && *due <= events_.now()) {
        step_rendezvous(daemon, rdzv::Tick{});
    } else {
        arm_rendezvous(daemon);
    }
}

}  // namespace ddprun::sim
