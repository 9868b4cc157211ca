#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/frames.hpp"
#include "rendezvous/wire/handshake.hpp"

namespace ddprun::rdzv {

enum class ConnectionEnd {
    EndOfStream,  ///< the peer closed: its process is gone, or it said so
    Lost,         ///< reset or timed out
    Failed,       ///< we reset it: bad bytes, or the peer reads too slowly
    Finished,     ///< finish() was called
};

/// One end of a TCP connection, with or without TLS: first the bytes of the handshake, then frames
/// out of a bounded queue and frames in. Both the agent's client and the daemon use it. Holds no
/// buffer of its own while idle. Kept alive by its coroutines and its own writes; one thread.
class Connection : public std::enable_shared_from_this<Connection> {
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

    // Before secure(). Failure is ConnectionLost if the connection has ended, else as TlsChannel's.
    // With TLS at most Limits::tls_hello_bytes_max are read.

    /// TLS from here on, after the bytes `seen` that the peer has said already.
    static boost::asio::awaitable<Result<void>> shake_tls(std::shared_ptr<Connection> self,
                                                          std::shared_ptr<const TlsContext> context,
                                                          std::string_view seen);
    [[nodiscard]] bool has_tls() const { return tls_ != nullptr; }
    static boost::asio::awaitable<Result<void>> read_exactly(std::shared_ptr<Connection> self,
                                                             char* to, std::size_t size);
    static boost::asio::awaitable<Result<void>> write_whole(std::shared_ptr<Connection> self,
                                                            std::string_view bytes);

    /// The handshake is over: frames follow.
    void secure(const SessionKeys& keys);
    [[nodiscard]] bool is_secured() const { return writer_.has_value(); }

    /// Calls `on_body` with each body until the connection has ended. `on_body` may call any
    /// method.
    static boost::asio::awaitable<ConnectionEnd> carry(
        std::shared_ptr<Connection> self, std::function<void(std::string_view)> on_body);

    /// Queues one frame. Passing Limits::send_queue_bytes_max fails the connection.
    void send(std::string_view body);

    /// Takes what has arrived already, without waiting.
    void read_ready();

    /// Resets the connection, so that the peer does not take it for the end of this process.
    void fail(const std::string& why);

    /// Sends what is queued, says end of stream, waits for the peer's, and closes; within
    /// Limits::close_timeout in any case.
    void finish();

    /// Gives the descriptor away, before secure() and with nothing under way. What is left has
    /// ended.
    [[nodiscard]] UniqueFd release();

    /// Closes at once and without a word; carry() ends.
    void close();

    /// Why it ended, for people; empty before.
    [[nodiscard]] const std::string& why_ended() const { return why_ended_; }
    [[nodiscard]] bool has_ended() const { return end_.has_value(); }

private:
    static boost::asio::awaitable<Result<void>> feed_tls(std::shared_ptr<Connection> self);
    static boost::asio::awaitable<Result<void>> flush_tls(std::shared_ptr<Connection> self);
    void end(ConnectionEnd how, const std::string& why);
    void take(std::string_view bytes);
    void take_tls();
    void take_plain(std::string_view bytes);
    void write_queued();
    void shut_down_if_flushed();

    Socket socket_;
    std::unique_ptr<TlsChannel> tls_;  ///< null: none
    std::size_t unproved_bytes_ = 0;   ///< arrived for TLS before secure()
    boost::asio::steady_timer close_timer_;
    const Limits limits_;
    std::optional<FrameWriter> writer_;
    std::optional<FrameReader> reader_;
    std::function<void(std::string_view)> on_body_;
    std::string queued_;
    std::string in_flight_;
    bool is_writing_ = false;
    bool is_finishing_ = false;
    bool has_said_end_ = false;
    std::optional<ConnectionEnd> end_;
    std::string why_ended_;
};

}  // namespace ddprun::rdzv
