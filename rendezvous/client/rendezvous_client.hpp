#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/limits.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/client/link.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

struct ClientOptions {
    std::vector<Endpoint> endpoints;  ///< at least one; tried in turn, of several daemons
    std::optional<JobSecret> secret;  ///< none: --insecure, works only with a daemon that has none
    std::shared_ptr<const TlsContext> tls;  ///< null: none, works only with a daemon that has none
    JobId job;                              ///< the only job that may be joined on this link; UTF-8
    Limits limits;
    /// Before each attempt to connect, while no lasting daemon has accepted us; may be empty.
    std::function<void()> before_attempt;
    Rng rng{0};  ///< jitters the pauses between attempts
};

/// A Link over TCP. Connects, proves the secret both ways, then carries frames; when the connection
/// ends it tries again with jittered exponential back-off until stop(). Final, and not tried again:
/// another secret, another protocol version, a peer that is no ddprun rendezvous.
/// Whatever ends a connection except stop() resets it, so that the rendezvous does not take it for
/// the death of this process. Lives on one thread, that of `io`, and is not used inside its own
/// callbacks' destruction. Host names are resolved on a helper thread; a resolver that hangs
/// delays neither stop() nor the loop, but io_context::run() returns only after it.
class RendezvousClient final : public Link {
public:
    RendezvousClient(boost::asio::io_context& io, ClientOptions options);
    ~RendezvousClient() override;
    RendezvousClient(const RendezvousClient&) = delete;
    RendezvousClient& operator=(const RendezvousClient&) = delete;

    void start(LinkEvents events) override;
    void send(const AgentMessage& message) override;
    void drop(const std::string& why) override;
    void stop(std::function<void()> done) override;

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
