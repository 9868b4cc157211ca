#include "rendezvous/transport/dial.hpp"

#include <array>
#include <chrono>
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
    : options_(std::move(options)),
      io_(io),
      deadline_(io,
                [this] {
                    is_timed_out_ = true;
                    connection_->fail("timed out");
                }),
      lookup_(io) {}

bool is_final(const Error& failure) {
    return failure.code == ErrorCode::Refused || failure.code == ErrorCode::BadSecret ||
           failure.code == ErrorCode::BadMessage;
}

void Dialer::cancel() {
    is_cancelled_ = true;
    lookup_.cancel();
    deadline_.set(std::nullopt);
    if (connection_) {
        connection_->fail("given up");
    }
}

asio::awaitable<Result<std::unique_ptr<Connection>>> Dialer::dial(DialTarget target) {
    peer_ = to_string(target.endpoint);
    if (is_cancelled_) {
        co_return Error{ErrorCode::Unreachable,
                        fmt::format("cannot connect to the rendezvous at {}: given up", peer_)};
    }
    Result<std::vector<Endpoint>> addresses = co_await resolve(target);
    if (!addresses) {
        co_return addresses.error();
    }
    if (options_.on_resolved) {
        options_.on_resolved(target.endpoint, *addresses);
    }
    Result<void> connected = Error{ErrorCode::Unreachable, "given up"};
    for (const Endpoint& address : *addresses) {
        if (is_cancelled_) {
            break;
        }
        connected = co_await connect(target, address);
        if (connected) {
            break;
        }
    }
    if (!connected || is_cancelled_) {
        const std::string why = connected ? "given up" : connected.error().what;
        co_return Error{connected ? ErrorCode::Unreachable : connected.error().code,
                        fmt::format("cannot connect to the rendezvous at {}: {}", peer_, why)};
    }
    const Result<SessionKeys> keys = co_await shake_hands(target);
    deadline_.set(std::nullopt);
    std::unique_ptr<Connection> connection = std::move(connection_);
    if (!keys) {
        connection->fail(keys.error().what);
        co_return keys.error();
    }
    if (connection->has_ended()) {  // cancelled, or too late
        co_return Error{ErrorCode::ConnectionLost, connection->why_ended()};
    }
    connection->secure(*keys);
    co_return std::move(connection);
}

asio::awaitable<Result<std::vector<Endpoint>>> Dialer::resolve(DialTarget target) {
    const Endpoint& endpoint = target.endpoint;
    error_code is_name;
    static_cast<void>(asio::ip::make_address(endpoint.host, is_name));
    if (!is_name) {
        co_return std::vector<Endpoint>{endpoint};  // as the user wrote it
    }
    const Instant until = std::chrono::steady_clock::now() + target.connect_timeout;
    const NameLookup::Answer answer = co_await lookup_.resolve(endpoint.host, until);
    if (answer.failure == asio::error::timed_out) {
        co_return Error{ErrorCode::TimedOut,
                        fmt::format("the rendezvous host {} cannot be resolved: no answer within "
                                    "{} ms",
                                    endpoint.host, target.connect_timeout.count())};
    }
    if (answer.addresses.empty()) {
        co_return Error{ErrorCode::Unreachable,
                        fmt::format("the rendezvous host {} cannot be resolved: {}", endpoint.host,
                                    answer.failure.message())};
    }
    std::vector<Endpoint> found;
    for (const asio::ip::address& address : answer.addresses) {
        found.push_back({address.to_string(), endpoint.port});
    }
    co_return found;
}

asio::awaitable<Result<void>> Dialer::connect(DialTarget target, Endpoint address) {
    error_code failure;
    const tcp::endpoint to(asio::ip::make_address(address.host, failure), address.port);
    tcp::socket fresh(io_);
    is_timed_out_ = false;
    if (!failure) {
        fresh.open(to.protocol(), failure);
    }
    if (!failure) {
        connection_ = std::make_unique<Connection>(std::move(fresh), options_.limits);
        Connection::Socket& socket = connection_->socket();
        arm_deadline(target.connect_timeout);
        std::tie(failure) = co_await socket.async_connect(to, asio::as_tuple(asio::use_awaitable));
        deadline_.set(std::nullopt);
        // A port without a listener may be the one the kernel chose for us: TCP then connects
        // the socket to itself.
        error_code ignored;
        if (!failure && socket.local_endpoint(ignored) == socket.remote_endpoint(ignored)) {
            failure = asio::error::connection_refused;
        }
    }
    if (is_timed_out_ || failure) {
        const std::string at =
            address == target.endpoint ? std::string() : fmt::format("{}: ", address.host);
        co_return Error{
            is_timed_out_ ? ErrorCode::TimedOut : ErrorCode::Unreachable,
            at + (is_timed_out_ ? error_code(asio::error::timed_out) : failure).message()};
    }
    connection_->tune();
    co_return Result<void>();
}

// --------------------------------------------------------------------------------- the handshake

asio::awaitable<Result<SessionKeys>> Dialer::shake_hands(DialTarget target) {
    arm_deadline(target.hello_timeout);
    if (options_.tls) {
        const Result<void> hidden =
            co_await connection_->shake_tls(options_.tls, std::string_view());
        if (!hidden) {
            co_return handshake_error(hidden.error());
        }
    }
    co_return co_await prove();
}

asio::awaitable<Result<SessionKeys>> Dialer::prove() {
    const AgentHandshake handshake(options_.secret, options_.job, random_nonce(), options_.role);
    Result<void> moved = co_await connection_->write_whole(handshake.hello());
    if (!moved) {
        co_return handshake_error(moved.error());
    }
    // Another kind of server may send less than an answer and wait: the first bytes show it.
    std::array<char, kAnswerBytes> answer{};
    moved = co_await connection_->read_exactly(answer.data(), kMagic.size());
    if (!moved) {
        co_return handshake_error(moved.error());
    }
    const std::string_view bytes(answer.data(), answer.size());
    if (bytes.starts_with(kMagic)) {
        moved = co_await connection_->read_exactly(answer.data() + kMagic.size(),
                                                   answer.size() - kMagic.size());
        if (!moved) {
            co_return handshake_error(moved.error());
        }
    }
    const Result<AgentHandshake::Finish> finish = handshake.finish(bytes, peer_);
    if (!finish) {
        if (finish.error().code == ErrorCode::BadSecret) {
            const std::string words(kProofBytes, '\0');
            moved = co_await connection_->write_whole(words);
        }
        co_return finish.error();
    }
    moved = co_await connection_->write_whole(finish->proof);
    if (!moved) {
        co_return handshake_error(moved.error());
    }
    co_return finish->keys;
}

void Dialer::arm_deadline(Milliseconds after) {
    is_timed_out_ = false;
    armed_for_ = after;
    deadline_.set(std::chrono::steady_clock::now() + after);
}

Error Dialer::handshake_error(const Error& failure) const {
    if (is_timed_out_) {
        return Error{ErrorCode::TimedOut,
                     fmt::format("what listens at {} does not answer as a ddprun rendezvous within "
                                 "{} ms",
                                 peer_, armed_for_.count())};
    }
    if (failure.code == ErrorCode::ConnectionLost) {
        return Error{failure.code, fmt::format("lost the rendezvous at {} in the handshake: {}",
                                               peer_, failure.what)};
    }
    return Error{failure.code,
                 fmt::format("no TLS with the rendezvous at {}: {}", peer_, failure.what)};
}

}  // namespace ddprun::rdzv
