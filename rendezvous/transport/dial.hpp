#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/transport/connection.hpp"
#include "rendezvous/transport/name_lookup.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/handshake.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

struct DialOptions {
    std::optional<JobSecret> secret;        ///< none: --insecure
    std::shared_ptr<const TlsContext> tls;  ///< null: none
    JobId job;                              ///< what the connection is about
    PeerRole role = PeerRole::Agent;
    Limits limits;
    /// With the numeric addresses that `asked` was found to have, before they are tried in this
    /// order; may change them. May be empty.
    std::function<void(const Endpoint& asked, std::vector<Endpoint>& addresses)> on_resolved;
};

struct DialTarget {
    Endpoint endpoint;
    Milliseconds connect_timeout{0};  ///< for the host to be resolved, and for each address
    Milliseconds hello_timeout{0};    ///< for the handshake
};

/// The way to a secured connection: resolves a host on a helper thread, tries its addresses, and
/// proves the secret both ways. One dial() at a time; one thread. Outlives the loop, or the dial()
/// that is under way.
class Dialer {
public:
    Dialer(boost::asio::io_context& io, DialOptions options);
    Dialer(const Dialer&) = delete;
    Dialer& operator=(const Dialer&) = delete;

    /// A secured connection, for which carry() is to be called. Failure names the endpoint;
    /// Unreachable, ConnectionLost, TimedOut, or what no other attempt would change (is_final()). A
    /// connection that failed on the way was reset.
    boost::asio::awaitable<Result<std::unique_ptr<Connection>>> dial(DialTarget target);

    /// The dial() under way, and every later one, fails at once.
    void cancel();

private:
    boost::asio::awaitable<Result<std::vector<Endpoint>>> resolve(DialTarget target);
    boost::asio::awaitable<Result<void>> connect(DialTarget target, Endpoint address);
    boost::asio::awaitable<Result<SessionKeys>> shake_hands(DialTarget target);
    boost::asio::awaitable<Result<SessionKeys>> prove();

    void arm_deadline(Milliseconds after);
    [[nodiscard]] Error handshake_error(const Error& failure) const;

    const DialOptions options_;
    boost::asio::io_context& io_;
    DeadlineTimer deadline_;
    NameLookup lookup_;
    std::unique_ptr<Connection> connection_;  ///< of this attempt
    std::string peer_;                        ///< the endpoint of this attempt, for people
    Milliseconds armed_for_{0};               ///< the deadline
    bool is_timed_out_ = false;
    bool is_cancelled_ = false;
};

/// Another attempt would end the same way: another secret, version or certificate, or no
/// rendezvous at all.
[[nodiscard]] bool is_final(const Error& failure);

}  // namespace ddprun::rdzv
