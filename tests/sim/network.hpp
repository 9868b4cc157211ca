#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "tests/sim/dice.hpp"
#include "tests/sim/event_queue.hpp"
#include "tests/sim/options.hpp"

namespace ddprun::sim {

enum class PacketKind { Up, Message, EndOfStream, Reset };

struct Packet {
    PacketKind kind = PacketKind::Message;
    std::string body;  ///< of Message: what the codec made of it
};

/// Connections as TCP gives them: order is kept, delays differ, a connection that breaks loses what
/// is under way, and each side learns of it in its own time, or never. Packets that are held up
/// arrive later: TCP sends again what the network loses.
class Network {
public:
    using Receiver = std::function<void(ConnectionId, int whom, Packet)>;

    Network(EventQueue& events, const SimOptions& options);

    /// The network calls these for what reaches a daemon and what reaches a node. Set once.
    Receiver to_rendezvous;
    Receiver to_node;

    /// A new connection of `node`; Up reaches the node once the daemon has answered.
    ConnectionId connect(int node, int daemon);
    void send_to_rendezvous(ConnectionId connection, std::string body);
    void send_to_node(ConnectionId connection, std::string body);

    /// The node's end is closed: the other end hears of it after what was sent.
    void close_at_node(ConnectionId connection, PacketKind kind);
    void close_at_rendezvous(ConnectionId connection, PacketKind kind = PacketKind::EndOfStream);
    /// The node's machine is off: what was sent may arrive, then there is silence.
    void fall_silent(ConnectionId connection);

    /// Faults.
    void cut(ConnectionId connection, PacketKind kind_at_rendezvous);
    void clog(ConnectionId connection, Duration duration);
    void block(int node, bool is_up_stream, Instant until);
    /// Messages that are sent until `until` take up to `most` longer.
    void slow_down(Duration most, Instant until);
    /// Nothing reaches the daemon over `connection` before.
    void hold_up(ConnectionId connection, Instant until);
    /// The daemon completes no new connection before.
    void hold_handshakes(int daemon, Instant until);
    /// Another process is in its place, and completes those that begin from now on.
    void release_handshakes(int daemon);
    /// Nothing passes between a daemon and any node before.
    void block_daemon(int daemon, Instant until);

    /// The longest that a message of `node` that is sent now can take, if nothing else happens to
    /// it.
    [[nodiscard]] Duration delay_max_now(int node) const;
    [[nodiscard]] bool is_slow(int node) const { return link(node).times > 1; }
    [[nodiscard]] ConnectionId last_connection() const { return ConnectionId(last_id_); }
    /// Whose connection it is, while either end is open.
    [[nodiscard]] std::optional<int> node_of(ConnectionId connection) const;
    [[nodiscard]] std::optional<int> daemon_of(ConnectionId connection) const;
    /// Until when something holds up what `connection` carries to the rendezvous.
    [[nodiscard]] Instant held_up_stream(ConnectionId connection) const;
    /// Both ways, for whatever reason, at any connection of `node`.
    [[nodiscard]] bool is_disturbed(int node) const;

private:
    struct Pipe {
        bool is_up_stream = false;
        bool is_open = true;  ///< the receiving end still listens
        bool is_armed = false;
        Instant last_ready{};
        std::deque<std::pair<Instant, Packet>> queue;
    };
    struct Connection {
        int node = 0;
        int daemon = 0;
        Instant clogged_until{};
        Instant up_held_until{};
        Pipe up{.is_up_stream = true};
        Pipe down;
    };
    struct Link {
        Dice dice;
        int times = 1;  ///< as slow as others
        Instant up_busy_until{};
        Instant down_busy_until{};
        Instant up_blocked_until{};
        Instant down_blocked_until{};
        Instant clogged_until{};  ///< the last clog of any of its connections
    };

    /// A daemon's end of all its connections.
    struct Site {
        Instant handshakes_held_until{};
        Instant blocked_until{};
    };

    void push(ConnectionId id, Connection& connection, Pipe& pipe, Packet packet);
    void arm(ConnectionId id, Connection& connection, Pipe& pipe);
    void pump(ConnectionId id, bool is_up_stream);
    [[nodiscard]] Duration spike() const;
    [[nodiscard]] Instant sent_by(Link& path, const Pipe& pipe, const Packet& packet);
    [[nodiscard]] Instant ready_at(const Connection& connection, const Pipe& pipe) const;
    [[nodiscard]] Link& link(int node) { return links_[static_cast<std::size_t>(node)]; }
    [[nodiscard]] const Link& link(int node) const {
        return links_[static_cast<std::size_t>(node)];
    }

    [[nodiscard]] Site& site(int daemon) { return sites_[static_cast<std::size_t>(daemon)]; }
    [[nodiscard]] const Site& site(int daemon) const {
        return sites_[static_cast<std::size_t>(daemon)];
    }

    EventQueue& events_;
    Milliseconds delay_max_;
    std::int64_t bytes_per_second_;  ///< of each node, each way; 0: no limit
    Duration slow_by_{};
    Instant slow_until_{};
    Duration queued_max_{};  ///< the longest that anything waited for others on its link
    std::vector<Link> links_;
    std::vector<Site> sites_;
    std::uint64_t last_id_ = 0;
    std::map<ConnectionId, Connection> connections_;
};

}  // namespace ddprun::sim
