#include "rendezvous/transport/dial.hpp"

#include <array>
#include <string_view>
#include <tuple>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

Dialer::Dialer(asio::io_context& io, DialOptions options)
    : options_(std::move(options)), io_(io), resolver_(io), deadline_(io) {}

bool is_final(const Error& failure) {
    return failure.code == ErrorCode::Refused || failure.code == ErrorCode::BadSecret ||
           failure.code == ErrorCode::BadMessage;
}

void Dialer::cancel() {
    is_cancelled_ = true;
    resolver_.cancel();
    disarm_deadline();
    if (connection_) {
        connection_->fail("given up");
    }
}

asio::awaitable<Result<std::shared_ptr<Connection>>> Dialer::dial(Self self, Endpoint endpoint) {
    self->peer_ = to_string(endpoint);
    std::vector<tcp::endpoint> addresses;
    error_code failure = co_await resolve(self, endpoint, addresses);
    if (failure) {
        co_return Error{ErrorCode::Unreachable,
                        fmt::format("the rendezvous host {} cannot be resolved: {}", endpoint.host,
                                    failure.message())};
    }
    for (const tcp::endpoint& address : addresses) {
        failure = co_await connect(self, address);
        if (!failure || self->is_cancelled_) {
            break;
        }
    }
    if (failure || self->is_cancelled_) {
        co_return Error{ErrorCode::Unreachable,
                        fmt::format("cannot connect to the rendezvous at {}: {}", self->peer_,
                                    failure.message())};
    }
    const std::shared_ptr<Connection> connection = self->connection_;
    const Result<SessionKeys> keys = co_await shake_hands(self);
    self->disarm_deadline();
    self->connection_.reset();
    if (!keys) {
        connection->fail(keys.error().what);
        co_return keys.error();
    }
    if (connection->has_ended()) {  // cancelled, or too late
        co_return Error{ErrorCode::ConnectionLost, connection->why_ended()};
    }
    connection->secure(*keys);
    co_return connection;
}

asio::awaitable<error_code> Dialer::resolve(Self self, Endpoint endpoint,
                                            std::vector<tcp::endpoint>& found) {
    error_code failure;
    const asio::ip::address address = asio::ip::make_address(endpoint.host, failure);
    if (!failure) {
        found.emplace_back(address, endpoint.port);
        co_return failure;
    }
    const std::string port = std::to_string(endpoint.port);
    const auto [unresolved, results] = co_await self->resolver_.async_resolve(
        endpoint.host, port, asio::as_tuple(asio::use_awaitable));
    for (const auto& result : results) {
        found.push_back(result.endpoint());
    }
    failure = unresolved;
    if (!failure && found.empty()) {
        failure = asio::error::host_not_found;
    }
    co_return failure;
}

asio::awaitable<error_code> Dialer::connect(Self self, tcp::endpoint address) {
    tcp::socket fresh(self->io_);
    error_code failure;
    fresh.open(address.protocol(), failure);
    if (failure) {
        co_return failure;
    }
    self->connection_ = std::make_shared<Connection>(std::move(fresh), self->options_.limits);
    Connection::Socket& socket = self->connection_->socket();
    self->arm_deadline(self->options_.limits.connect_timeout);
    std::tie(failure) = co_await socket.async_connect(address, asio::as_tuple(asio::use_awaitable));
    self->disarm_deadline();
    if (self->is_timed_out_) {
        failure = asio::error::timed_out;
    }
    if (failure) {
        co_return failure;
    }
    // A port that nobody listens on may be the one the kernel chose for us: TCP then connects the
    // socket to itself.
    error_code ignored;
    if (socket.local_endpoint(ignored) == socket.remote_endpoint(ignored)) {
        failure = asio::error::connection_refused;
        co_return failure;
    }
    self->connection_->tune();
    co_return failure;
}

// --------------------------------------------------------------------------------- the handshake

asio::awaitable<Result<SessionKeys>> Dialer::shake_hands(Self self) {
    self->arm_deadline(self->options_.limits.hello_timeout);
    if (self->options_.tls) {
        const Result<void> hidden = co_await begin_tls(self);
        if (!hidden) {
            co_return self->handshake_error(hidden.error());
        }
    }
    co_return co_await prove(self);
}

asio::awaitable<Result<void>> Dialer::begin_tls(Self self) {
    Result<void> hidden =
        co_await Connection::shake_tls(self->connection_, self->options_.tls, std::string_view());
    co_return hidden;
}

asio::awaitable<Result<SessionKeys>> Dialer::prove(Self self) {
    const std::shared_ptr<Connection> connection = self->connection_;
    const AgentHandshake handshake(self->options_.secret, self->options_.job, random_nonce(),
                                   self->options_.role);
    Result<void> moved = co_await Connection::write_whole(connection, handshake.hello());
    if (!moved) {
        co_return self->handshake_error(moved.error());
    }
    // Whatever else serves there may send less than an answer and wait: the first bytes tell.
    std::array<char, kAnswerBytes> answer{};
    moved = co_await Connection::read_exactly(connection, answer.data(), kMagic.size());
    if (!moved) {
        co_return self->handshake_error(moved.error());
    }
    const std::string_view bytes(answer.data(), answer.size());
    if (bytes.starts_with(kMagic)) {
        moved = co_await Connection::read_exactly(connection, answer.data() + kMagic.size(),
                                                  answer.size() - kMagic.size());
        if (!moved) {
            co_return self->handshake_error(moved.error());
        }
    }
    const Result<AgentHandshake::Finish> finish = handshake.finish(bytes, self->peer_);
    if (!finish) {
        co_return finish.error();
    }
    moved = co_await Connection::write_whole(connection, finish->proof);
    if (!moved) {
        co_return self->handshake_error(moved.error());
    }
    co_return finish->keys;
}

void Dialer::arm_deadline(Milliseconds after) {
    is_timed_out_ = false;
    deadline_.expires_after(after);
    // A timer that has fired already cannot be cancelled; its number tells that it is an old one.
    deadline_.async_wait([self = shared_from_this(), number = ++deadline_number_](error_code) {
        if (number == self->deadline_number_) {
            self->is_timed_out_ = true;
            self->connection_->fail("timed out");
        }
    });
}

void Dialer::disarm_deadline() {
    ++deadline_number_;
    deadline_.cancel();
}

Error Dialer::handshake_error(const Error& failure) const {
    if (is_timed_out_) {
        return Error{ErrorCode::TimedOut,
                     fmt::format("what listens at {} does not answer as a ddprun rendezvous within "
                                 "{} ms",
                                 peer_, options_.limits.hello_timeout.count())};
    }
    if (failure.code == ErrorCode::ConnectionLost) {
        return Error{failure.code, fmt::format("lost the rendezvous at {} in the handshake: {}",
                                               peer_, failure.what)};
    }
    return Error{failure.code,
                 fmt::format("no TLS with the rendezvous at {}: {}", peer_, failure.what)};
}

}  // namespace ddprun::rdzv
