#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

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

/// One accepted connection. Outlives its coroutine, and the handlers that this leaves cancelled.
struct Session {
    struct Greeting {};  ///< it proves itself
    /// It made room for newer ones before it had.
    struct Evicted {
        std::string why;
    };
    struct Watching {
        std::string seen;  ///< of what it said inside TLS
    };                     ///< it speaks HTTP
    struct Secured {};     ///< it has proved itself
    struct Dismissed {};   ///< closed here: its end is told to nobody

    Session(ConnectionId number, boost::asio::ip::tcp::socket socket, const Limits& limits,
            std::string address, RendezvousHandshake hello, std::shared_ptr<const TlsContext> ours);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// Closes the connection after `patience`: a client that asks has no reason to stay.
    void limit(Milliseconds patience);

    /// "10.0.0.7": `peer` without its port.
    [[nodiscard]] std::string address() const { return peer.substr(0, peer.find(' ')); }

    const ConnectionId id;
    Connection connection;
    boost::asio::steady_timer deadline;  ///< of the handshake, then of its first words
    const std::string peer;              ///< its address, for the log
    RendezvousHandshake handshake;
    const std::shared_ptr<const TlsContext> tls;  ///< null: TLS is not spoken here
    std::variant<Greeting, Evicted, Watching, Secured, Dismissed> state;
};

/// That first byte is a client's of the TCPStore.
[[nodiscard]] bool is_of_store(char first_byte);

/// That first byte begins a request of HTTP.
[[nodiscard]] bool is_of_http(char first_byte);

/// "10.0.0.7 port 4711": who is at the other end of a connected socket, for the log.
[[nodiscard]] std::string peer_name(int fd);

/// Finds out who speaks on a fresh connection and lets it prove itself, until `deadline`. Nothing:
/// the connection is secured, and Connection::carry() is next, or its state is Watching. Else why
/// it was turned away. At most kHelloBytes and kProofBytes are read, and with TLS
/// Limits::tls_hello_bytes_max; nothing is kept.
boost::asio::awaitable<Result<void>> greet(Session& session, Instant deadline);

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
