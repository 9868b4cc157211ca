#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/frames.hpp"
#include "rendezvous/wire/handshake.hpp"

namespace ddprun::rdzv {

enum class ConnectionEnd {
    EndOfStream,  ///< the peer closed: its process is gone, or it said so
    Lost,         ///< reset or timed out
    Failed,       ///< we reset it: bad bytes, or the peer reads too slowly
    Finished,     ///< finish() or close() was called
};

/// One end of a TCP connection, with or without TLS: first the bytes of the handshake, then frames
/// out of a bounded queue and frames in. Both the agent's client and the daemon use it. Holds no
/// buffer of its own while idle. One thread.
///
/// Outlives each of its coroutines. While none is under way it has no handler on the loop and may
/// be destroyed: before secure(), before carry() if nothing was sent, and after carry().
class Connection {
public:
    using Socket = boost::asio::ip::tcp::socket;

    /// `socket` is open; it becomes close-on-exec.
    Connection(Socket socket, const Limits& limits);
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// For connecting and asking; only this class reads and writes it.
    [[nodiscard]] Socket& socket() { return socket_; }

    /// No delay for small frames, steady retries of lost ones, and the end of a connection whose
    /// other machine is gone. Once connected.
    void tune();

    /// Beats are under way from now on, so that bytes which stay unanswered for three leases mean a
    /// dead machine or network.
    void expect_beats();

    // Before secure(). Failure is ConnectionLost if the connection has ended, else as TlsChannel's.
    // With TLS at most Limits::tls_hello_bytes_max are read.

    /// TLS from here on, after the bytes `seen` that the peer has said already.
    boost::asio::awaitable<Result<void>> shake_tls(std::shared_ptr<const TlsContext> context,
                                                   std::string_view seen);
    [[nodiscard]] bool has_tls() const { return tls_ != nullptr; }
    /// After shake_tls(): as TlsChannel's.
    [[nodiscard]] std::string tls_binding() const { return tls_->binding(); }
    boost::asio::awaitable<Result<void>> read_exactly(char* to, std::size_t size);
    boost::asio::awaitable<Result<void>> write_whole(std::string_view bytes);

    /// It is no connection of ours but of another protocol: hands over what that is spoken on.
    /// Then close() alone may be called.
    struct Released {
        Socket socket;
        std::unique_ptr<TlsChannel> tls;  ///< null: none
    };
    [[nodiscard]] Released release();

    /// The handshake is over: frames follow. Then carry() is called, even if the connection has
    /// ended meanwhile.
    void secure(const SessionKeys& keys);
    [[nodiscard]] bool is_in_handshake() const { return std::holds_alternative<Handshake>(state_); }

    /// Calls `on_body` with each body until the connection has ended. `on_body` may call any
    /// method.
    boost::asio::awaitable<ConnectionEnd> carry(std::function<void(std::string_view)> on_body);

    /// Queues one frame, unless the connection has ended or is about to. Passing
    /// Limits::send_queue_bytes_max fails it.
    void send(std::string_view body);

    /// Takes what has arrived already, without waiting.
    void read_ready();

    /// Resets the connection, so that the peer does not take it for the end of this process.
    void fail(const std::string& why);

    /// Sends what is queued, says end of stream, waits for the peer's, and closes; within
    /// Limits::close_timeout in any case.
    void finish();

    /// Closes at once and without a word; what is under way ends.
    void close();

    [[nodiscard]] bool has_ended() const { return std::holds_alternative<Ended>(state_); }
    /// For people. Once it has ended.
    [[nodiscard]] const std::string& why_ended() const { return std::get<Ended>(state_).why; }

private:
    // Each state is followed by the next one, or at once by Ended.
    struct Handshake {};  ///< until secure()
    struct Open {};       ///< frames go both ways
    struct Flushing {};   ///< finish() was called: what is queued is sent, nothing is taken
    struct Parting {};    ///< our end of stream is sent, or about to be; the peer's is awaited
    struct Ended {
        ConnectionEnd how;
        std::string why;
    };
    /// Made by secure(). A body that was taken lies in the reader while `on_body` has it, which may
    /// end the connection: so this is no part of the state.
    struct Frames {
        FrameWriter writer;
        FrameReader reader;
    };

    [[nodiscard]] bool is_open() const { return std::holds_alternative<Open>(state_); }
    [[nodiscard]] bool is_writing() const { return !in_flight_.empty(); }
    void limit_silence(Milliseconds most);
    boost::asio::awaitable<Result<void>> feed_tls();
    boost::asio::awaitable<Result<void>> flush_tls();
    void end(ConnectionEnd how, const std::string& why);
    void take(std::string_view bytes);
    void take_tls();
    void take_plain(std::string_view bytes);
    void write_queued();
    void write_some();
    void wrote_some(boost::system::error_code failure, std::size_t count);
    void part_if_flushed();

    Socket socket_;
    std::unique_ptr<TlsChannel> tls_;  ///< null: none
    std::size_t unproved_bytes_ = 0;   ///< arrived for TLS before secure()
    boost::asio::steady_timer close_timer_;
    const Limits limits_;
    std::optional<Frames> frames_;
    std::function<void(std::string_view)> on_body_;
    std::string queued_;
    std::string in_flight_;  ///< what is being written; empty: nothing
    std::size_t sent_ = 0;   ///< of in_flight_
    std::variant<Handshake, Open, Flushing, Parting, Ended> state_;
};

}  // namespace ddprun::rdzv
