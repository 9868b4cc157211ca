// An agent's connection. Which daemon it asks is decided by rdzv::EndpointChoice.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/wire/codec.hpp"
#include "tests/sim/driver.hpp"

namespace ddprun::sim {

/// Begins the next attempt.
void Simulation::connect_again(Machine& machine) {
    if (machine.supervisor == nullptr) {
        return;
    }
    const rdzv::EndpointAttempt attempt = machine.choice->next();
    later_in_agent(machine, attempt.pause,
                   [this, attempt](Machine& same) { connect(same, attempt); });
}

void Simulation::connect(Machine& machine, const rdzv::EndpointAttempt& attempt) {
    machine.is_connected = false;
    machine.is_accepted = false;
    const std::string name = rdzv::to_string(attempt.endpoint);
    const auto asked = std::find_if(daemons_.begin(), daemons_.end(),
                                    [&](const Daemon& one) { return one.name == name; });
    if (!asked->is_up) {
        machine.choice->failed(false);
        step_agent(machine, agent::LinkDown{.why = "connection refused"});
        connect_again(machine);
        return;
    }
    machine.connection = network_.connect(machine.index, asked->index);
    later_in_agent(machine, attempt.connect_timeout,
                   [this, connection = machine.connection](Machine& same) {
                       if (same.connection == connection && !same.is_connected) {
                           same.choice->failed(true);
                           lose_link(same, "connecting took too long");
                       }
                   });
}

/// This side gives the connection up.
void Simulation::lose_link(Machine& machine, const std::string& why) {
    trace(name_of(machine), fmt::format("gives up link {}: {}", machine.connection->value(), why));
    network_.close_at_node(*machine.connection, PacketKind::Reset);
    machine.connection.reset();
    machine.is_accepted = false;
    step_agent(machine, agent::LinkDown{.why = why});
    connect_again(machine);
}

void Simulation::drop_link(Machine& machine, const std::string& why) {
    machine.choice->fell_silent();
    lose_link(machine, why);
}

void Simulation::node_receives(ConnectionId connection, int node, Packet packet) {
    Machine& machine = machines_[static_cast<std::size_t>(node)];
    if (machine.supervisor != nullptr) {
        in_agent(machine, [this, connection, packet = std::move(packet)](Machine& same) {
            agent_receives(same, connection, packet);
        });
    }
}

void Simulation::agent_receives(Machine& machine, ConnectionId connection, const Packet& packet) {
    if (machine.connection != connection) {
        return;
    }
    if (packet.kind == PacketKind::Up) {
        trace(name_of(machine), fmt::format("link {} is up", connection.value()));
        machine.is_connected = true;
        step_agent(machine, agent::LinkUp{fmt::format("10.0.0.{}", machine.index + 1)});
        return;
    }
    if (packet.kind != PacketKind::Message) {
        trace(name_of(machine), fmt::format("link {} is down", connection.value()));
        machine.connection.reset();
        machine.is_connected = false;
        machine.is_accepted = false;
        step_agent(machine, agent::LinkDown{.why = "connection reset"});
        connect_again(machine);
        return;
    }
    const Result<rdzv::RendezvousMessage> message =
        rdzv::decode_rendezvous_message(packet.body, options_.limits);
    if (!message.has_value()) {
        checker_.violate("codec", message.error().what);
        return;
    }
    if (const auto* redirect = std::get_if<rdzv::Redirect>(&message.value())) {
        machine.choice->redirected(redirect->endpoint);
        lose_link(machine, redirect->endpoint + " leads");
        return;
    }
    machine.choice->answered();
    machine.unanswered.reset();
    hear(machine, message.value());
}

/// Sends `message` over the connection of now.
void Simulation::ask(Machine& machine, rdzv::AgentMessage message) {
    const std::optional<Milliseconds> patience = machine.choice->asking(message);
    network_.send_to_rendezvous(*machine.connection, rdzv::encode(message));
    if (!patience.has_value()) {
        return;
    }
    machine.unanswered = machine.connection;
    later_in_agent(machine, *patience, [this, asked = machine.connection](Machine& same) {
        if (same.connection == asked && same.unanswered == asked) {
            same.choice->nobody_leads();
            lose_link(same, "nobody leads");
        }
    });
}

}  // namespace ddprun::sim
