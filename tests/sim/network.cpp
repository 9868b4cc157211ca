#include "tests/sim/network.hpp"

#include <algorithm>
#include <utility>

namespace ddprun::sim {

Network::Network(EventQueue& events, Rng& rng, Milliseconds delay_max)
    : events_(events), rng_(rng), delay_max_(delay_max) {}

Duration Network::delay() {
    const auto most = static_cast<std::uint64_t>(Duration(delay_max_).count());
    return Duration(static_cast<Duration::rep>(rng_.below(most + 1)));
}

ConnectionId Network::connect(int node) {
    const ConnectionId id(++last_id_);
    Connection& connection = connections_[id];
    connection.node = node;
    push(id, connection.down, Packet{.kind = PacketKind::Up, .body = {}});
    return id;
}

void Network::push(ConnectionId id, Pipe& pipe, Packet packet) {
    if (!pipe.is_open) {
        return;
    }
    pipe.last_ready = std::max(pipe.last_ready, events_.now() + delay());
    pipe.queue.emplace_back(pipe.last_ready, std::move(packet));
    arm(id, pipe);
}

void Network::arm(ConnectionId id, Pipe& pipe) {
    if (pipe.is_armed || pipe.queue.empty()) {
        return;
    }
    pipe.is_armed = true;
    const Instant ready = std::max(pipe.queue.front().first, connections_.at(id).clogged_until);
    const bool is_up_stream = pipe.is_up_stream;
    events_.at(ready, [this, id, is_up_stream] { pump(id, is_up_stream); });
}

void Network::pump(ConnectionId id, bool is_up_stream) {
    Connection& connection = connections_.at(id);
    Pipe& pipe = is_up_stream ? connection.up : connection.down;
    pipe.is_armed = false;
    if (pipe.queue.empty()) {
        return;
    }
    const Instant ready = std::max(pipe.queue.front().first, connection.clogged_until);
    if (ready > events_.now()) {
        arm(id, pipe);
        return;
    }
    Packet packet = std::move(pipe.queue.front().second);
    pipe.queue.pop_front();
    if (packet.kind == PacketKind::EndOfStream || packet.kind == PacketKind::Reset) {
        pipe.is_open = false;
        pipe.queue.clear();
    }
    arm(id, pipe);
    const Receiver& receiver = is_up_stream ? to_rendezvous : to_node;
    receiver(id, connection.node, std::move(packet));
}

void Network::send_to_rendezvous(ConnectionId connection, std::string body) {
    push(connection, connections_.at(connection).up,
         Packet{.kind = PacketKind::Message, .body = std::move(body)});
}

void Network::send_to_node(ConnectionId connection, std::string body) {
    const auto found = connections_.find(connection);
    if (found != connections_.end()) {
        push(connection, found->second.down,
             Packet{.kind = PacketKind::Message, .body = std::move(body)});
    }
}

void Network::close_at_node(ConnectionId connection, PacketKind kind) {
    Connection& found = connections_.at(connection);
    found.down.is_open = false;
    found.down.queue.clear();
    if (kind == PacketKind::Reset) {
        found.up.queue.clear();
    }
    push(connection, found.up, Packet{.kind = kind, .body = {}});
}

void Network::close_at_rendezvous(ConnectionId connection) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) {
        return;
    }
    found->second.up.is_open = false;
    found->second.up.queue.clear();
    push(connection, found->second.down, Packet{.kind = PacketKind::EndOfStream, .body = {}});
}

void Network::fall_silent(ConnectionId connection) {
    Connection& found = connections_.at(connection);
    found.down.is_open = false;
    found.down.queue.clear();
}

void Network::cut(ConnectionId connection, PacketKind kind_at_rendezvous) {
    Connection& found = connections_.at(connection);
    found.up.queue.clear();
    found.down.queue.clear();
    push(connection, found.up, Packet{.kind = kind_at_rendezvous, .body = {}});
    push(connection, found.down, Packet{.kind = PacketKind::Reset, .body = {}});
}

void Network::clog(ConnectionId connection, Duration duration) {
    Connection& found = connections_.at(connection);
    found.clogged_until = std::max(found.clogged_until, events_.now() + duration);
}

}  // namespace ddprun::sim
