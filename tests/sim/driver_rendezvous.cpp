// What the daemon does around its coordinator: connections, its timer, hold-ups, the journal.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/protocol/codec.hpp"
#include "rendezvous/protocol/run_record.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

namespace {

bool is_acknowledgement(const rdzv::Effect& effect) {
    const rdzv::Send* send = std::get_if<rdzv::Send>(&effect);
    return send != nullptr && std::holds_alternative<rdzv::Acknowledge>(send->message);
}

}  // namespace

/// A process of its own, with what the last one left in the journal.
void Simulation::open_daemon() {
    const Instant now = events_.now();
    daemon_.is_up = true;
    daemon_.coordinator = std::make_unique<rdzv::Coordinator>(
        JobId("sim"),
        rdzv::CoordinatorOptions{.limits = options_.limits, .has_leases = !options_.is_in_process},
        Rng(dice_.next()));
    if (!journal_.record.has_value()) {
        return;
    }
    const Result<rdzv::RunRecord> record =
        rdzv::decode_run_record(rdzv::encode(*journal_.record), options_.limits);
    if (!record.has_value()) {
        checker_.violate("codec", record.error().what);
        return;
    }
    const Result<void> restored = daemon_.coordinator->restore(now, record.value());
    if (!restored.has_value()) {
        checker_.violate("journal", restored.error().what);
    }
    trace("rdzv", "goes on with the journal's run");
    if (!daemon_.has_journal) {
        step_rendezvous(rdzv::Durability{"no space left on device"});
    }
    arm_rendezvous();
}

void Simulation::in_daemon(std::function<void()> action) {
    if (daemon_.is_paused) {
        daemon_.waits_for_it.push_back(std::move(action));
    } else {
        action();
    }
}

void Simulation::rendezvous_receives(ConnectionId connection, int node, const Packet& packet) {
    if (connection <= daemon_.dead_connections) {
        network_.close_at_rendezvous(connection, PacketKind::Reset);
        return;
    }
    if (packet.kind != PacketKind::Message) {
        if (daemon_.served.erase(connection) > 0) {
            step_rendezvous(
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
    take_message(connection, node, message.value());
}

void Simulation::take_message(ConnectionId connection, int node,
                              const rdzv::AgentMessage& message) {
    const bool is_join = std::holds_alternative<rdzv::Join>(message);
    if (is_join && network_.node_of(connection) == node) {
        daemon_.served.insert(connection);
    } else if (!daemon_.served.contains(connection)) {
        return;  // closed meanwhile
    }
    if (!std::holds_alternative<rdzv::Beat>(message)) {
        trace("rdzv", fmt::format("<- {} {}", connection.value(), message_text(message)));
    }
    step_rendezvous(rdzv::Received{.connection = connection, .message = message});
}

void Simulation::step_rendezvous(const rdzv::Input& input) {
    const Instant now = events_.now();
    if (daemon_.coordinator->is_forgettable(now)) {
        journal_ = JournalEntry{};
        open_daemon();
        checker_.forget_run();
    }
    rdzv::Coordinator& coordinator = *daemon_.coordinator;
    const std::size_t nodes_before =
        coordinator.run() == nullptr ? 0 : coordinator.run()->nodes.size();
    rdzv::Effects effects;
    checker_.before_step(coordinator, input, now);
    coordinator.step(now, input, effects);
    checker_.after_step(coordinator, input, effects, now);
    carry_out(effects);
    if (coordinator.run() != nullptr) {
        judge_losses_of_living(nodes_before);
        judge_everybodys_publishing();
    }
    arm_rendezvous();
}

// --------------------------------------------------------------------------------------- effects

void Simulation::carry_out(const rdzv::Effects& effects) {
    for (const rdzv::Effect& effect : effects) {
        const rdzv::Send* send = std::get_if<rdzv::Send>(&effect);
        if (send != nullptr && !daemon_.served.contains(send->connection)) {
            checker_.violate("IO",
                             fmt::format("sent to connection {}, which has ended: {}",
                                         send->connection.value(), message_text(send->message)));
        }
        if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
            note_replacement(*close);
        }
        if (const rdzv::Persist* order = std::get_if<rdzv::Persist>(&effect)) {
            persist(order->is_awaited);
        } else if (const rdzv::Trace* line = std::get_if<rdzv::Trace>(&effect)) {
            trace("rdzv", line->text);
        } else if (daemon_.awaited > daemon_.written && !is_acknowledgement(effect)) {
            if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
                daemon_.served.erase(close->connection);
            }
            daemon_.held.push_back({.order = daemon_.awaited, .effect = effect});
        } else {
            carry_out(effect);
        }
    }
}

void Simulation::carry_out(const rdzv::Effect& effect) {
    if (const rdzv::Send* send = std::get_if<rdzv::Send>(&effect)) {
        let_out(*send);
    } else if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
        close_connection(*close);
    }
}

void Simulation::let_out(const rdzv::Send& send) {
    if (const rdzv::Start* start = std::get_if<rdzv::Start>(&send.message)) {
        judge_start(send, *start);
    } else if (const rdzv::Refused* refused = std::get_if<rdzv::Refused>(&send.message)) {
        judge_refusal(*refused);
    }
    judge_durability(send.message);
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

void Simulation::close_connection(const rdzv::CloseConnection& close) {
    trace("rdzv", fmt::format("closes {}: {}", close.connection.value(), close.reason));
    daemon_.served.erase(close.connection);
    network_.close_at_rendezvous(close.connection);
}

// --------------------------------------------------------------------------------------- journal

void Simulation::persist(bool is_awaited) {
    if (!daemon_.has_journal) {
        return;
    }
    daemon_.orders += 1;
    if (is_awaited) {
        daemon_.awaited = daemon_.orders;
    }
    if (!daemon_.is_writing) {
        begin_write();
    }
}

/// The newest record serves all orders until now.
void Simulation::begin_write() {
    JournalEntry entry{daemon_.coordinator->record(events_.now())};
    daemon_.is_writing = true;
    events_.after(dice_.up_to(options_.journal_delay_max),
                  [this, life = daemon_.life, orders = daemon_.orders, entry = std::move(entry)] {
                      if (life != daemon_.life) {
                          return;
                      }
                      journal_ = entry;  // a paused process does not pause its disk
                      in_daemon([this, life, orders] {
                          if (life == daemon_.life) {
                              record_is_written(orders);
                          }
                      });
                  });
}

void Simulation::record_is_written(std::uint64_t orders) {
    daemon_.is_writing = false;
    daemon_.written = std::max(daemon_.written, orders);
    daemon_.is_behind = daemon_.is_behind && (!daemon_.has_journal || orders < daemon_.orders);
    if (daemon_.has_journal && daemon_.orders > daemon_.written) {
        begin_write();
    }
    let_out_what_waits();
}

void Simulation::let_out_what_waits() {
    while (!daemon_.held.empty() && daemon_.held.front().order <= daemon_.written) {
        const rdzv::Effect effect = std::move(daemon_.held.front().effect);
        daemon_.held.pop_front();
        carry_out(effect);
    }
}

// ----------------------------------------------------------------------------------------- timer

void Simulation::arm_rendezvous() {
    const std::optional<Instant> deadline = daemon_.coordinator->next_deadline();
    if (!deadline.has_value() || (daemon_.tick_at.has_value() && *daemon_.tick_at <= *deadline)) {
        return;
    }
    const Instant at = std::max(*deadline, events_.now());
    daemon_.tick_at = at;
    const std::uint64_t life = daemon_.life;
    events_.at(at, [this, at, life] {
        if (life == daemon_.life && daemon_.is_up && !daemon_.is_paused) {
            rendezvous_timer_fires(at);
        }
    });
}

void Simulation::rendezvous_timer_fires(Instant at) {
    if (daemon_.tick_at != at) {
        return;
    }
    daemon_.tick_at.reset();
    const std::optional<Instant> due = daemon_.coordinator->next_deadline();
    if (due.has_value() && *due <= events_.now()) {
        step_rendezvous(rdzv::Tick{});
    } else {
        arm_rendezvous();
    }
}

}  // namespace ddprun::sim
