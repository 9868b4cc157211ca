#include "rendezvous/transport/connection.hpp"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/transport/keepalive.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kReadBytes = 16384;
constexpr std::size_t kUnprovedReadBytes = 4096;
// After so many full reads the others get their turn.
constexpr int kReadsPerTurn = 64;
// A peer that answers none of so many is gone.
constexpr int kQuestions = 3;

Error lost(const error_code& failure) {
    return {ErrorCode::ConnectionLost,
            failure == asio::error::eof ? "it closed the connection" : failure.message()};
}

}  // namespace

Connection::Connection(Socket socket, const Limits& limits)
    : socket_(std::move(socket)), close_timer_(socket_.get_executor()), limits_(limits) {
    // Asio 1.81 does not ask for this when it makes the descriptor.
    DDP_CHECK(::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC) == 0, errno);
}

void Connection::tune() {
    // A failure of these options is no reason to refuse a connection.
    error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    const int fd = socket_.native_handle();
    // A beat that is lost twice would be sent for the third time only when most of the lease is
    // over. For streams as thin as ours the kernel can leave the time between tries as it is.
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
    // An agent that waits for a known leader, or whose machine is being checked, neither beats nor
    // is told anything: the kernel asks for it. With a time that is over before the first question
    // it would ask only once.
    limit_silence(limits_.keepalive_after + kQuestions * limits_.keepalive_interval);
    ask_when_silent(fd, limits_);
    socket_.non_blocking(true, ignored);
}

void Connection::expect_beats() {
    limit_silence(3 * limits_.lease);
}

void Connection::limit_silence(Milliseconds most) {
    const auto timeout = static_cast<unsigned int>(most.count());
    ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
}

// --------------------------------------------------------------------------------- the handshake

asio::awaitable<Result<void>> Connection::shake_tls(std::shared_ptr<const TlsContext> context,
                                                    std::string_view seen) {
    tls_ = std::make_unique<TlsChannel>(std::move(context));
    unproved_bytes_ = seen.size();
    tls_->feed(seen);
    for (;;) {
        const Result<bool> is_over = tls_->shake_hands();
        // An alert, too, must reach the other side.
        Result<void> moved = co_await flush_tls();
        if (!is_over) {
            co_return is_over.error();
        }
        if (!moved || *is_over) {
            co_return moved;
        }
        moved = co_await feed_tls();
        if (!moved) {
            co_return moved;
        }
    }
}

asio::awaitable<Result<void>> Connection::read_exactly(char* to, std::size_t size) {
    if (!tls_) {
        const auto [failure, count] = co_await asio::async_read(
            socket_, asio::buffer(to, size), asio::as_tuple(asio::use_awaitable));
        if (failure) {
            co_return lost(failure);
        }
        co_return Result<void>();
    }
    for (;;) {
        const Result<std::size_t> count = tls_->read(to, size);
        if (!count) {
            co_return count.error();
        }
        to += *count;
        size -= *count;
        if (size == 0) {
            co_return Result<void>();
        }
        if (*count == 0) {
            const Result<void> fed = co_await feed_tls();
            if (!fed) {
                co_return fed.error();
            }
        }
    }
}

asio::awaitable<Result<void>> Connection::write_whole(std::string_view bytes) {
    if (tls_) {
        const Result<void> written = tls_->write(bytes);
        if (!written) {
            co_return written.error();
        }
        co_return co_await flush_tls();
    }
    const auto [failure, count] = co_await asio::async_write(socket_, asio::buffer(bytes),
                                                             asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost(failure);
    }
    co_return Result<void>();
}

asio::awaitable<Result<void>> Connection::feed_tls() {
    std::string buffer(kUnprovedReadBytes, '\0');
    const auto [failure, count] =
        co_await socket_.async_read_some(asio::buffer(buffer), asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost(failure);
    }
    const std::string_view arrived(buffer.data(), count);
    if (unproved_bytes_ == 0 && arrived.starts_with(kMagic)) {
        co_return Error{ErrorCode::Refused,
                        "it was started without TLS; start it with --tls-cert and --tls-key, or "
                        "leave --tls-ca out here"};
    }
    unproved_bytes_ += count;
    if (unproved_bytes_ > limits_.tls_hello_bytes_max) {
        co_return Error{ErrorCode::LimitExceeded,
                        fmt::format("more than {} bytes of TLS before it has proved itself",
                                    limits_.tls_hello_bytes_max)};
    }
    tls_->feed(arrived);
    co_return Result<void>();
}

asio::awaitable<Result<void>> Connection::flush_tls() {
    const std::string bytes = tls_->take_output();
    const auto [failure, count] = co_await asio::async_write(socket_, asio::buffer(bytes),
                                                             asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost(failure);
    }
    co_return Result<void>();
}

// ---------------------------------------------------------------------------------------- frames

Connection::Released Connection::release() {
    DDP_CHECK(is_in_handshake());
    return {std::move(socket_), std::move(tls_)};
}

void Connection::secure(const SessionKeys& keys) {
    frames_ = Frames{.writer = FrameWriter(keys.outgoing),
                     .reader = FrameReader(keys.incoming, limits_.frame_bytes_max)};
    if (is_in_handshake()) {
        state_ = Open{};
    }
}

asio::awaitable<ConnectionEnd> Connection::carry(std::function<void(std::string_view)> on_body) {
    DDP_CHECK(frames_.has_value());
    on_body_ = std::move(on_body);
    if (tls_) {
        take_tls();  // frames may have come with the proof
    }
    while (!has_ended()) {
        const auto [failure] =
            co_await socket_.async_wait(Socket::wait_read, asio::as_tuple(asio::use_awaitable));
        if (failure) {
            end(ConnectionEnd::Lost, failure.message());
        } else {
            read_ready();
        }
    }
    // The end has cancelled the write and the timer, and their handlers begin nothing new: they
    // have their turn before this.
    co_await asio::post(socket_.get_executor(), asio::use_awaitable);
    on_body_ = nullptr;
    co_return std::get<Ended>(state_).how;
}

void Connection::read_ready() {
    std::array<char, kReadBytes> buffer;
    for (int i = 0; i < kReadsPerTurn && !has_ended(); ++i) {
        error_code failure;
        const std::size_t count = socket_.read_some(asio::buffer(buffer), failure);
        if (failure == asio::error::would_block || failure == asio::error::interrupted) {
            return;
        }
        if (failure == asio::error::eof) {
            end(ConnectionEnd::EndOfStream, "it closed the connection");
            return;
        }
        if (failure) {
            end(ConnectionEnd::Lost, failure.message());
            return;
        }
        take(std::string_view(buffer.data(), count));
        if (count < buffer.size()) {
            return;
        }
    }
}

void Connection::take(std::string_view bytes) {
    if (!is_open()) {
        return;
    }
    if (!tls_) {
        take_plain(bytes);
        return;
    }
    tls_->feed(bytes);
    take_tls();
}

void Connection::take_tls() {
    std::array<char, kReadBytes> buffer;
    while (is_open()) {
        const Result<std::size_t> count = tls_->read(buffer.data(), buffer.size());
        if (!count) {
            fail(count.error().what);
            return;
        }
        if (*count == 0) {
            break;
        }
        take_plain(std::string_view(buffer.data(), *count));
    }
    if (!has_ended()) {
        write_queued();  // TLS may have something to answer by itself
    }
}

void Connection::take_plain(std::string_view bytes) {
    frames_->reader.feed(bytes);
    while (is_open()) {
        const Result<std::optional<std::string_view>> body = frames_->reader.next();
        if (!body) {
            fail(body.error().what);
            return;
        }
        if (!body->has_value()) {
            return;
        }
        on_body_(**body);
    }
}

void Connection::send(std::string_view body) {
    DDP_CHECK(!is_in_handshake());
    if (!is_open()) {
        return;
    }
    if (body.size() > limits_.frame_bytes_max) {
        fail(fmt::format("a message of {} bytes does not fit into a frame of {}", body.size(),
                         limits_.frame_bytes_max));
        return;
    }
    frames_->writer.append(body, queued_);
    if (queued_.size() > limits_.send_queue_bytes_max) {
        fail(fmt::format("it does not read: {} bytes wait for it, allowed are {}", queued_.size(),
                         limits_.send_queue_bytes_max));
        return;
    }
    write_queued();
}

void Connection::write_queued() {
    if (is_writing() || (queued_.empty() && !(tls_ && tls_->has_output()))) {
        return;
    }
    in_flight_ = std::exchange(queued_, {});
    if (tls_) {
        const Result<void> hidden = tls_->write(in_flight_);
        if (!hidden) {
            fail(hidden.error().what);
            return;
        }
        in_flight_ = tls_->take_output();
    }
    sent_ = 0;
    write_some();
}

// Piece by piece, as a piece whose end is known already must not begin another one after end().
void Connection::write_some() {
    socket_.async_write_some(
        asio::buffer(in_flight_) + sent_,
        [this](error_code failure, std::size_t count) { wrote_some(failure, count); });
}

void Connection::wrote_some(error_code failure, std::size_t count) {
    if (has_ended()) {
        return;
    }
    if (failure) {
        end(ConnectionEnd::Lost, failure.message());
        return;
    }
    sent_ += count;
    if (sent_ < in_flight_.size()) {
        write_some();
        return;
    }
    in_flight_ = {};
    write_queued();
    part_if_flushed();
}

/// After finish(): once all is sent, the last word; once that is sent, the end of stream.
void Connection::part_if_flushed() {
    if (std::holds_alternative<Flushing>(state_) && !is_writing() && queued_.empty()) {
        state_ = Parting{};
        if (tls_) {
            tls_->say_end();
            write_queued();
        }
    }
    if (std::holds_alternative<Parting>(state_) && !is_writing()) {
        error_code ignored;
        socket_.shutdown(Socket::shutdown_send, ignored);
    }
}

void Connection::fail(const std::string& why) {
    if (has_ended()) {
        return;
    }
    error_code ignored;
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    end(ConnectionEnd::Failed, why);
}

void Connection::finish() {
    DDP_CHECK(!is_in_handshake());
    if (!is_open()) {
        return;
    }
    state_ = Flushing{};
    // Closing with unread input would turn our end of stream into a reset, and the peer might lose
    // what was sent last: so the peer's end is awaited.
    close_timer_.expires_after(limits_.close_timeout);
    close_timer_.async_wait([this](error_code cancelled) {
        if (!cancelled) {
            end(ConnectionEnd::Finished, "closed");
        }
    });
    part_if_flushed();
}

void Connection::close() {
    end(ConnectionEnd::Finished, "closed");
}

void Connection::end(ConnectionEnd how, const std::string& why) {
    if (has_ended()) {
        return;
    }
    const bool is_ours =
        std::holds_alternative<Flushing>(state_) || std::holds_alternative<Parting>(state_);
    state_ = Ended{is_ours ? ConnectionEnd::Finished : how, why};
    queued_ = {};
    close_timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
}

}  // namespace ddprun::rdzv
