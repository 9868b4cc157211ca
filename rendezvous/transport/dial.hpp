#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/transport/connection.hpp"
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
};

/// The way to a secured connection: resolves a host on a helper thread, tries its addresses, and
/// proves the secret both ways. One dial() at a time; one thread.
class Dialer : public std::enable_shared_from_this<Dialer> {
public:
    Dialer(boost::asio::io_context& io, DialOptions options);
    Dialer(const Dialer&) = delete;
    Dialer& operator=(const Dialer&) = delete;

    /// Failure names the endpoint; Unreachable, ConnectionLost, TimedOut, or what no other attempt
    /// would change (is_final()). A connection that failed on the way was reset.
    static boost::asio::awaitable<Result<std::shared_ptr<Connection>>> dial(
        std::shared_ptr<Dialer> self, Endpoint endpoint);

    /// The dial() under way, and every later one, fails.
    void cancel();

private:
    using Self = std::shared_ptr<Dialer>;
    using Address = boost::asio::ip::tcp::endpoint;

    static boost::asio::awaitable<boost::system::error_code> resolve(Self self, Endpoint endpoint,
                                                                     std::vector<Address>& found);
    static boost::asio::awaitable<boost::system::error_code> connect(Self self, Address address);
    static boost::asio::awaitable<Result<void>> begin_tls(Self self);
    static boost::asio::awaitable<Result<SessionKeys>> shake_hands(Self self);
    static boost::asio::awaitable<Result<SessionKeys>> prove(Self self);

    void arm_deadline(Milliseconds after);
    void disarm_deadline();
    [[nodiscard]] Error handshake_error(const Error& failure) const;

    const DialOptions options_;
    boost::asio::io_context& io_;
    boost::asio::ip::tcp::resolver resolver_;
    boost::asio::steady_timer deadline_;
    std::shared_ptr<Connection> connection_;  ///< of this attempt
    std::string peer_;                        ///< the endpoint of this attempt, for people
    std::uint64_t deadline_number_ = 0;
    bool is_timed_out_ = false;
    bool is_cancelled_ = false;
};

/// Another attempt would end the same way: another secret, version or certificate, or no
/// rendezvous at all.
[[nodiscard]] bool is_final(const Error& failure);

}  // namespace ddprun::rdzv
