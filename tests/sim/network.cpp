#include "tests/sim/network.hpp"

#include <algorithm>

namespace ddprun::sim {

namespace {

/// A message has so many bytes beside its body: frame, MAC, TCP.
constexpr std::int64_t kFrameBytes = 64;

}  // namespace

Network::Network(EventQueue& events, const SimOptions& options)
    : events_(events),
      delay_max_(options.delay_max),
      bytes_per_second_(std::int64_t{options.bandwidth_kib} << 10),
      sites_(static_cast<std::size_t>(options.daemons)) {
    for (int i = 0; i < options.nodes; ++i) {
        links_.push_back(Link{.dice = Dice(options.seed, 1000 + static_cast<std::uint64_t>(i)),
                              .times = i < options.nodes - options.slow_nodes ? 1 : kSlowness});
    }
}

Duration Network::delay_max_now(int node) const {
    return delay_max_ * link(node).times + spike() + queued_max_;
}

Duration Network::spike() const {
    return events_.now() < slow_until_ ? slow_by_ : Duration{};
}

ConnectionId Network::connect(int node, int daemon) {
    const ConnectionId id(++last_id_);
    Connection& connection = connections_[id];
    connection.node = node;
    connection.daemon = daemon;
    push(id, connection, connection.down, Packet{.kind = PacketKind::Up, .body = {}});
    return id;
}

/// When the last byte has left, behind all that the link carries already.
Instant Network::sent_by(Link& path, const Pipe& pipe, const Packet& packet) {
    const Instant now = events_.now();
    if (bytes_per_second_ == 0) {
        return now;
    }
    Instant& busy_until = pipe.is_up_stream ? path.up_busy_until : path.down_busy_until;
    const std::int64_t bytes = static_cast<std::int64_t>(packet.body.size()) + kFrameBytes;
    busy_until = std::max(busy_until, now) +
                 std::chrono::nanoseconds(std::nano::den) * bytes / bytes_per_second_;
    queued_max_ = std::max(queued_max_, busy_until - now);
    return busy_until;
}

void Network::push(ConnectionId id, Connection& connection, Pipe& pipe, Packet packet) {
    if (!pipe.is_open) {
        return;
    }
    Link& path = link(connection.node);
    const Duration delay = path.dice.up_to(delay_max_ * path.times + spike());
    pipe.last_ready = std::max(pipe.last_ready, sent_by(path, pipe, packet) + delay);
    pipe.queue.emplace_back(pipe.last_ready, std::move(packet));
    arm(id, connection, pipe);
}

Instant Network::ready_at(const Connection& connection, const Pipe& pipe) const {
    const Link& path = link(connection.node);
    const Site& end = site(connection.daemon);
    const bool is_handshake = pipe.queue.front().second.kind == PacketKind::Up;
    Instant at = std::max({pipe.queue.front().first, connection.clogged_until, end.blocked_until});
    if (pipe.is_up_stream || is_handshake) {
        at = std::max({at, path.up_blocked_until, connection.up_held_until});
    }
    if (!pipe.is_up_stream) {
        at = std::max(at, path.down_blocked_until);
    }
    return is_handshake ? std::max(at, end.handshakes_held_until) : at;
}

void Network::arm(ConnectionId id, Connection& connection, Pipe& pipe) {
    if (pipe.is_armed || pipe.queue.empty()) {
        return;
    }
    pipe.is_armed = true;
    const bool is_up_stream = pipe.is_up_stream;
    events_.at(ready_at(connection, pipe), [this, id, is_up_stream] { pump(id, is_up_stream); });
}

void Network::pump(ConnectionId id, bool is_up_stream) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) {
        return;
    }
    Connection& connection = found->second;
    Pipe& pipe = is_up_stream ? connection.up : connection.down;
    pipe.is_armed = false;
    if (pipe.queue.empty()) {
        return;
    }
    if (ready_at(connection, pipe) > events_.now()) {
        arm(id, connection, pipe);
        return;
    }
    Packet packet = std::move(pipe.queue.front().second);
    pipe.queue.pop_front();
    if (packet.kind == PacketKind::EndOfStream || packet.kind == PacketKind::Reset) {
        pipe.is_open = false;
        pipe.queue.clear();
    }
    arm(id, connection, pipe);
    const int whom = is_up_stream ? connection.daemon : connection.node;
    if (!connection.up.is_open && !connection.down.is_open) {
        connections_.erase(found);
    }
    const Receiver& receiver = is_up_stream ? to_rendezvous : to_node;
    receiver(id, whom, std::move(packet));
}

void Network::send_to_rendezvous(ConnectionId connection, std::string body) {
    const auto found = connections_.find(connection);
    if (found != connections_.end()) {
        push(connection, found->second, found->second.up,
             Packet{.kind = PacketKind::Message, .body = std::move(body)});
    }
}

void Network::send_to_node(ConnectionId connection, std::string body) {
    const auto found = connections_.find(connection);
    if (found != connections_.end()) {
        push(connection, found->second, found->second.down,
             Packet{.kind = PacketKind::Message, .body = std::move(body)});
    }
}

void Network::close_at_node(ConnectionId connection, PacketKind kind) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) {
        return;
    }
    found->second.down.is_open = false;
    found->second.down.queue.clear();
    if (kind == PacketKind::Reset) {
        found->second.up.queue.clear();
    }
    push(connection, found->second, found->second.up, Packet{.kind = kind, .body = {}});
}

void Network::close_at_rendezvous(ConnectionId connection, PacketKind kind) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) {
        return;
    }
    found->second.up.is_open = false;
    found->second.up.queue.clear();
    push(connection, found->second, found->second.down, Packet{.kind = kind, .body = {}});
}

void Network::fall_silent(ConnectionId connection) {
    const auto found = connections_.find(connection);
    if (found != connections_.end()) {
        found->second.down.is_open = false;
        found->second.down.queue.clear();
    }
}

void Network::cut(ConnectionId connection, PacketKind kind_at_rendezvous) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) {
        return;
    }
    found->second.up.queue.clear();
    found->second.down.queue.clear();
    push(connection, found->second, found->second.up,
         Packet{.kind = kind_at_rendezvous, .body = {}});
    push(connection, found->second, found->second.down,
         Packet{.kind = PacketKind::Reset, .body = {}});
}

void Network::clog(ConnectionId connection, Duration duration) {
    const auto found = connections_.find(connection);
    if (found != connections_.end()) {
        const Instant until = events_.now() + duration;
        Instant& clogged = found->second.clogged_until;
        clogged = std::max(clogged, until);
        Instant& of_link = link(found->second.node).clogged_until;
        of_link = std::max(of_link, until);
    }
}

void Network::block(int node, bool is_up_stream, Instant until) {
    Instant& blocked = is_up_stream ? link(node).up_blocked_until : link(node).down_blocked_until;
    blocked = std::max(blocked, until);
}

void Network::slow_down(Duration most, Instant until) {
    slow_by_ = most;
    slow_until_ = until;
}

void Network::hold_up(ConnectionId connection, Instant until) {
    const auto found = connections_.find(connection);
    if (found != connections_.end()) {
        Instant& held = found->second.up_held_until;
        held = std::max(held, until);
    }
}

void Network::hold_handshakes(int daemon, Instant until) {
    Instant& held = site(daemon).handshakes_held_until;
    held = std::max(held, until);
}

void Network::release_handshakes(int daemon) {
    site(daemon).handshakes_held_until = Instant{};
}

void Network::block_daemon(int daemon, Instant until) {
    Instant& blocked = site(daemon).blocked_until;
    blocked = std::max(blocked, until);
}

std::optional<int> Network::node_of(ConnectionId connection) const {
    const auto found = connections_.find(connection);
    return found == connections_.end() ? std::nullopt : std::optional<int>(found->second.node);
}

std::optional<int> Network::daemon_of(ConnectionId connection) const {
    const auto found = connections_.find(connection);
    return found == connections_.end() ? std::nullopt : std::optional<int>(found->second.daemon);
}

Instant Network::held_up_stream(ConnectionId connection) const {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) {
        return Instant{};
    }
    const Connection& it = found->second;
    return std::max({it.clogged_until, it.up_held_until, link(it.node).up_blocked_until,
                     site(it.daemon).blocked_until, it.up.last_ready});
}

bool Network::is_disturbed(int node) const {
    const Link& path = link(node);
    return std::max({path.up_blocked_until, path.down_blocked_until, path.clogged_until}) >
           events_.now();
}

}  // namespace ddprun::sim
