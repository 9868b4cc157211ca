#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// Events of a Link for its owner, always on the owner's io_context and never from inside a call of
/// the owner's.
struct LinkEvents {
    /// Connected and authenticated; `local_address` is this end's numeric address, `rendezvous` the
    /// other end's (empty in the same process).
    std::function<void(std::string local_address, Endpoint rendezvous)> on_up;
    /// The connection ended or could not be made. Unless `is_final`, the link tries again by itself
    /// and reports each reason once per change.
    std::function<void(std::string why, bool is_final)> on_down;
    std::function<void(RendezvousMessage)> on_message;
};

/// An agent's way to its rendezvous: a TCP connection (RendezvousClient), or a Coordinator in the
/// same process. One thread.
class Link {
public:
    virtual ~Link() = default;

    virtual void start(LinkEvents events) = 0;

    /// Queues `message`; silently dropped while the link is down: after on_up the owner says again
    /// what still matters.
    virtual void send(const AgentMessage& message) = 0;

    /// Hears what becomes of an order. If it is taken, `record` is the event that reports it, and
    /// the keeper of that event puts its number into the reply.
    using OrderAnswer =
        std::function<void(const OperatorReply& reply, const std::optional<Event>& record)>;

    /// An operator asks for something; `from` is told to people. Answered once. Only where the
    /// Coordinator is in this process anything comes of it.
    virtual void obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) = 0;

    /// Ends the connection, if there is one, as if it had broken, and looks for another one.
    virtual void drop(const std::string& why) = 0;

    /// Flushes what was queued (bounded in time), ends the connection, then calls `done`; no event
    /// comes after this call.
    virtual void stop(std::function<void()> done) = 0;
};

}  // namespace ddprun::rdzv
