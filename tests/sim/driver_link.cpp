// An agent's connection, and which of several daemons it asks: as RendezvousClient does it.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/wire/codec.hpp"
#include "tests/sim/driver.hpp"

namespace ddprun::sim {

namespace {

/// As rendezvous_client.cpp has them.
constexpr int kRedirectsMax = 4;
constexpr int kSkipsMax = 8;

}  // namespace

void Simulation::connect(Machine& machine) {
    machine.is_connected = false;
    machine.is_accepted = false;
    choose_daemon(machine);
    const Daemon& asked = daemon(machine.choice.current);
    if (!asked.is_up) {
        if (machine.choice.is_out_of_turn) {
            note_silent(machine);
        }
        step_agent(machine, agent::LinkDown{.why = "connection refused"});
        connect_again(machine);
        return;
    }
    machine.connection = network_.connect(machine.index, asked.index);
    // Of several daemons one that is gone must not be waited for long.
    const Milliseconds patience =
        has_several() ? std::min(options_.limits.connect_timeout, options_.limits.leader_lease / 2)
                      : options_.limits.connect_timeout;
    later_in_agent(machine, patience, [this, connection = machine.connection](Machine& same) {
        if (same.connection == connection && !same.is_connected) {
            note_silent(same);
            lose_link(same, "connecting took too long");
        }
    });
}

void Simulation::choose_daemon(Machine& machine) {
    Choice& choice = machine.choice;
    const std::size_t count = daemons_.size();
    choice.is_out_of_turn = choice.ask_next.has_value();
    if (choice.is_out_of_turn) {
        choice.current = *std::exchange(choice.ask_next, std::nullopt);
        return;
    }
    const auto endpoint = [&] { return static_cast<int>(choice.next % count); };
    const std::optional<int> waited_at = std::exchange(choice.waited_at, std::nullopt);
    const bool was_early = choice.others_left > 0 && endpoint() == choice.asked_early;
    choice.others_left = std::max(choice.others_left - 1, 0);
    if (count > 1 && (was_early || endpoint() == waited_at ||
                      (endpoint() == choice.silent && choice.skips_left-- > 0))) {
        ++choice.next;
    }
    choice.current = endpoint();
    ++choice.next;
}

/// An attempt is over. Whoever has somebody in particular to ask, or others, does so at once.
void Simulation::connect_again(Machine& machine) {
    if (machine.supervisor == nullptr) {
        return;
    }
    Choice& choice = machine.choice;
    Duration pause{};
    if (!choice.ask_next.has_value() && choice.next % daemons_.size() == 0) {
        const Milliseconds least = choice.backoff / 2;
        choice.backoff = std::min(choice.backoff * 2, options_.limits.reconnect_backoff_max);
        pause = least + machine.dice.up_to(least);
    }
    later_in_agent(machine, pause, [this](Machine& same) { connect(same); });
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

/// The one that fell silent is asked once more before the others: it may be awake again, and then
/// it expects us within a lease.
void Simulation::drop_link(Machine& machine, const std::string& why) {
    if (has_several()) {
        Choice& choice = machine.choice;
        choice.ask_next = choice.current;
        choice.asked_early = choice.current;
        choice.others_left = static_cast<int>(daemons_.size()) - 1;
    }
    lose_link(machine, why);
}

void Simulation::note_silent(Machine& machine) {
    machine.choice.silent = machine.choice.current;
    machine.choice.skips_left = kSkipsMax;
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
        follow_redirect(machine, *redirect);
        return;
    }
    machine.choice.redirects = 0;
    machine.choice.silent.reset();
    machine.choice.others_left = 0;
    machine.choice.backoff = options_.limits.reconnect_backoff_min;
    hear(machine, message.value());
}

void Simulation::follow_redirect(Machine& machine, const rdzv::Redirect& redirect) {
    Choice& choice = machine.choice;
    const auto leader = std::find_if(daemons_.begin(), daemons_.end(), [&](const Daemon& one) {
        return one.name == redirect.endpoint;
    });
    if (++choice.redirects <= kRedirectsMax) {
        choice.ask_next = leader->index;
        choice.silent.reset();  // our join told of it: so it leads anew
    } else {
        choice.redirects = 0;
    }
    lose_link(machine, leader->name + " leads");
}

/// A daemon that knows no leader keeps us until there is one, but not for ever.
void Simulation::ask_for_leader(Machine& machine, rdzv::AgentMessage message) {
    const std::optional<int> silent = machine.choice.silent;
    rdzv::Join* const join = std::get_if<rdzv::Join>(&message);
    (join != nullptr ? join->unreachable : std::get<rdzv::Unfit>(message).unreachable) =
        silent.has_value() ? daemon(*silent).name : std::string();
    network_.send_to_rendezvous(*machine.connection, rdzv::encode(message));
    later_in_agent(machine, leader_lease(), [this, asked = machine.connection](Machine& same) {
        if (same.connection == asked && !same.is_accepted) {
            same.choice.silent.reset();
            same.choice.waited_at = same.choice.current;
            lose_link(same, "nobody leads");
        }
    });
}

}  // namespace ddprun::sim
