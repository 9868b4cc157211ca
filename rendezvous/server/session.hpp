#pragma once

#include <memory>
#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/error.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/transport/connection.hpp"
#include "rendezvous/wire/handshake.hpp"

namespace ddprun::rdzv {

class TlsContext;

/// One accepted connection.
struct Session {
    Session(ConnectionId number, boost::asio::ip::tcp::socket socket, const Limits& limits,
            std::string address, RendezvousHandshake hello);

    /// Closes the connection after `patience`: whoever asks has no reason to stay.
    void limit(Milliseconds patience);

    ConnectionId id;
    std::shared_ptr<Connection> connection;
    boost::asio::steady_timer deadline;  ///< of the handshake
    std::string peer;                    ///< its address, for the log
    RendezvousHandshake handshake;
    std::shared_ptr<const TlsContext> tls;  ///< null: TLS is not spoken here
    std::optional<JobId> job;               ///< since its Join
    bool is_closed_by_job = false;
    std::string why_closed;  ///< by us in the handshake, if so
};

/// That first byte is a client's of the TCPStore.
[[nodiscard]] bool is_of_store(char first_byte);

/// "10.0.0.7 port 4711": who is at the other end of a connected socket, for the log.
[[nodiscard]] std::string peer_name(int fd);

/// Finds out who speaks on a fresh connection and lets it prove itself, until `deadline`. Nothing:
/// the connection is secured. Else why it was turned away. At most kHelloBytes and kProofBytes are
/// read, and with TLS Limits::tls_hello_bytes_max; nothing is kept.
boost::asio::awaitable<std::optional<Error>> greet(std::shared_ptr<Session> session,
                                                   Instant deadline);

/// At most one line a second about peers that got nowhere, so that they cannot fill a disk.
class RefusalLog {
public:
    /// The line to write now, if any.
    [[nodiscard]] std::optional<std::string> note(Instant now, const std::string& text);

private:
    std::optional<Instant> last_;
    std::size_t left_out_ = 0;
};

}  // namespace ddprun::rdzv
