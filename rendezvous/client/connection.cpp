#include "rendezvous/client/connection.hpp"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "rendezvous/base/check.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kReadBytes = 16384;
// After so many full reads the others get their turn.
constexpr int kReadsPerTurn = 64;

}  // namespace

Connection::Connection(Socket socket, const Limits& limits)
    : socket_(std::move(socket)), close_timer_(socket_.get_executor()), limits_(limits) {
    // Asio 1.81 does not ask for this when it makes the descriptor.
    DDP_CHECK(::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC) == 0, errno);
}

void Connection::tune() {
    // None of these matters enough to refuse a connection over.
    error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    // Beats are always under way, so unanswered bytes mean a dead machine or network.
    const auto timeout = static_cast<unsigned int>((3 * limits_.lease).count());
    ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
    socket_.non_blocking(true, ignored);
}

void Connection::secure(const SessionKeys& keys) {
    writer_.emplace(keys.outgoing);
    reader_.emplace(keys.incoming, limits_.frame_bytes_max);
}

asio::awaitable<ConnectionEnd> Connection::carry(std::shared_ptr<Connection> self,
                                                 std::function<void(std::string_view)> on_body) {
    DDP_CHECK(self->reader_.has_value());
    self->on_body_ = std::move(on_body);
    while (!self->end_) {
        const auto [failure] = co_await self->socket_.async_wait(
            Socket::wait_read, asio::as_tuple(asio::use_awaitable));
        if (failure) {
            self->end(ConnectionEnd::Lost, failure.message());
        } else {
            self->read_ready();
        }
    }
    self->on_body_ = nullptr;
    co_return *self->end_;
}

void Connection::read_ready() {
    std::array<char, kReadBytes> buffer;
    for (int i = 0; i < kReadsPerTurn && !end_; ++i) {
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
    if (is_finishing_) {
        return;
    }
    reader_->feed(bytes);
    while (!end_ && !is_finishing_) {
        const Result<std::optional<std::string_view>> body = reader_->next();
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
    if (end_ || is_finishing_) {
        return;
    }
    if (body.size() > limits_.frame_bytes_max) {
        fail(fmt::format("a message of {} bytes does not fit into a frame of {}", body.size(),
                         limits_.frame_bytes_max));
        return;
    }
    writer_->append(body, queued_);
    if (queued_.size() > limits_.send_queue_bytes_max) {
        fail(fmt::format("it does not read: {} bytes wait for it, allowed are {}", queued_.size(),
                         limits_.send_queue_bytes_max));
        return;
    }
    write_queued();
}

void Connection::write_queued() {
    if (is_writing_ || queued_.empty()) {
        return;
    }
    is_writing_ = true;
    in_flight_ = std::exchange(queued_, {});
    asio::async_write(socket_, asio::buffer(in_flight_),
                      [self = shared_from_this()](error_code failure, std::size_t) {
                          self->is_writing_ = false;
                          self->in_flight_ = {};
                          if (self->end_) {
                              return;
                          }
                          if (failure) {
                              self->end(ConnectionEnd::Lost, failure.message());
                              return;
                          }
                          self->write_queued();
                          self->shut_down_if_flushed();
                      });
}

void Connection::shut_down_if_flushed() {
    if (is_finishing_ && !is_writing_ && queued_.empty()) {
        error_code ignored;
        socket_.shutdown(Socket::shutdown_send, ignored);
    }
}

void Connection::fail(const std::string& why) {
    if (end_) {
        return;
    }
    error_code ignored;
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    end(ConnectionEnd::Failed, why);
}

void Connection::finish() {
    if (end_ || is_finishing_) {
        return;
    }
    is_finishing_ = true;
    // Closing with unread input would turn our end of stream into a reset, and the peer might lose
    // what was sent last: so the peer's end is awaited.
    close_timer_.expires_after(limits_.close_timeout);
    close_timer_.async_wait([self = shared_from_this()](error_code cancelled) {
        if (!cancelled) {
            self->end(ConnectionEnd::Finished, "closed");
        }
    });
    shut_down_if_flushed();
}

void Connection::close() {
    end(ConnectionEnd::Finished, "closed");
}

void Connection::end(ConnectionEnd how, const std::string& why) {
    if (end_) {
        return;
    }
    end_ = is_finishing_ ? ConnectionEnd::Finished : how;
    why_ended_ = why;
    queued_ = {};
    close_timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
}

}  // namespace ddprun::rdzv
