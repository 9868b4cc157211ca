#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "rendezvous/base/instant.hpp"
#include "rendezvous/base/rng.hpp"
#include "rendezvous/base/tagged.hpp"
#include "tests/sim/event_queue.hpp"

namespace ddprun::sim {

enum class PacketKind { Up, Message, EndOfStream, Reset };

struct Packet {
    PacketKind kind = PacketKind::Message;
    std::string body;  ///< of Message: what the codec made of it
};

/// Connections as TCP gives them: order is kept, delays differ, a connection that breaks loses what
/// is under way, and each side learns of it in its own time, or never.
class Network {
public:
    using Receiver = std::function<void(ConnectionId, int node, Packet)>;

    Network(EventQueue& events, Rng& rng, Milliseconds delay_max);

    /// What reaches the rendezvous and what reaches node `node`. Set once.
    Receiver to_rendezvous;
    Receiver to_node;

    /// A new connection of `node`; Up reaches the node after a delay.
    ConnectionId connect(int node);
    void send_to_rendezvous(ConnectionId connection, std::string body);
    void send_to_node(ConnectionId connection, std::string body);

    /// The node's end is closed: the other end hears of it after what was sent.
    void close_at_node(ConnectionId connection, PacketKind kind);
    void close_at_rendezvous(ConnectionId connection);
    /// The node's machine is off: what was sent may arrive, then there is silence.
    void fall_silent(ConnectionId connection);

    /// Faults.
    void cut(ConnectionId connection, PacketKind kind_at_rendezvous);
    void clog(ConnectionId connection, Duration duration);

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
        Instant clogged_until{};
        Pipe up{.is_up_stream = true};
        Pipe down;
    };

    void push(ConnectionId id, Pipe& pipe, Packet packet);
    void arm(ConnectionId id, Pipe& pipe);
    void pump(ConnectionId id, bool is_up_stream);
    [[nodiscard]] Duration delay();

    EventQueue& events_;
    Rng& rng_;
    Milliseconds delay_max_;
    std::uint64_t last_id_ = 0;
    std::map<ConnectionId, Connection> connections_;
};

}  // namespace ddprun::sim
