#include "rendezvous/client/rendezvous_client.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "rendezvous/base/check.hpp"
#include "rendezvous/client/connection.hpp"
#include "rendezvous/protocol/codec.hpp"
#include "rendezvous/protocol/handshake.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

class RendezvousClient::Impl : public std::enable_shared_from_this<Impl> {
public:
    Impl(asio::io_context& io, ClientOptions options)
        : options_(std::move(options)),
          io_(io),
          resolver_(io),
          deadline_(io),
          pause_(io),
          backoff_(options_.limits.reconnect_backoff_min) {
        DDP_CHECK(!options_.endpoints.empty());
    }

    void start(LinkEvents events);
    void send(const AgentMessage& message);
    void stop(std::function<void()> done);
    void abandon();

private:
    /// Why there is no connection (any more).
    struct Down {
        std::string why;
        bool is_final = false;
    };
    using Self = std::shared_ptr<Impl>;

    static asio::awaitable<void> run(Self self);
    static asio::awaitable<Down> attempt(Self self);
    static asio::awaitable<error_code> resolve(Self self, Endpoint endpoint,
                                               std::vector<tcp::endpoint>& found);
    static asio::awaitable<error_code> connect(Self self, tcp::endpoint address);
    static asio::awaitable<Result<AgentHandshake::Finish>> shake_hands(Self self);

    void take(std::string_view body);
    void report(const Down& down);
    void arm_deadline(Milliseconds after);
    void disarm_deadline();
    Milliseconds next_pause();
    Error handshake_error(const error_code& failure) const;

    ClientOptions options_;
    asio::io_context& io_;
    tcp::resolver resolver_;
    asio::steady_timer deadline_;
    asio::steady_timer pause_;
    LinkEvents events_;
    std::function<void()> done_;
    std::shared_ptr<Connection> connection_;  ///< of this attempt
    std::string peer_;                        ///< the endpoint of this attempt, for people
    std::size_t next_endpoint_ = 0;
    std::string last_reported_;
    Milliseconds backoff_;
    std::uint64_t deadline_number_ = 0;
    bool is_timed_out_ = false;
    bool is_running_ = false;
    bool is_up_ = false;
    bool is_stopping_ = false;
};

// --------------------------------------------------------------------------------- called by owner

void RendezvousClient::Impl::start(LinkEvents events) {
    DDP_CHECK(!is_running_ && !is_stopping_);
    events_ = std::move(events);
    is_running_ = true;
    asio::co_spawn(io_, run(shared_from_this()), asio::detached);
}

void RendezvousClient::Impl::send(const AgentMessage& message) {
    if (is_up_ && !is_stopping_) {
        connection_->send(encode(message));
    }
}

void RendezvousClient::Impl::stop(std::function<void()> done) {
    const bool is_flushing = is_up_ && !is_stopping_;
    is_stopping_ = true;
    if (is_flushing) {
        done_ = std::move(done);  // run() calls it when the connection is closed
        connection_->finish();
        return;
    }
    abandon();
    asio::post(io_, std::move(done));
}

void RendezvousClient::Impl::abandon() {
    is_stopping_ = true;
    done_ = nullptr;
    resolver_.cancel();
    pause_.cancel();
    disarm_deadline();
    if (connection_) {
        connection_->fail("given up");
    }
}

// --------------------------------------------------------------------------------------- attempts

asio::awaitable<void> RendezvousClient::Impl::run(Self self) {
    // No event may come from inside start().
    co_await asio::post(self->io_, asio::use_awaitable);
    while (!self->is_stopping_) {
        const Down down = co_await attempt(self);
        self->is_up_ = false;
        self->disarm_deadline();
        if (self->connection_) {
            self->connection_->fail(down.why);  // whatever is left of a failed attempt
            self->connection_.reset();
        }
        if (self->is_stopping_) {
            break;
        }
        self->report(down);
        if (down.is_final || self->is_stopping_) {
            break;
        }
        self->pause_.expires_after(self->next_pause());
        const auto [cancelled] =
            co_await self->pause_.async_wait(asio::as_tuple(asio::use_awaitable));
        static_cast<void>(cancelled);  // is_stopping_ tells
    }
    if (const std::function<void()> done = std::exchange(self->done_, nullptr)) {
        done();
    }
}

asio::awaitable<RendezvousClient::Impl::Down> RendezvousClient::Impl::attempt(Self self) {
    if (self->options_.before_attempt) {
        self->options_.before_attempt();
    }
    const std::vector<Endpoint>& endpoints = self->options_.endpoints;
    const Endpoint endpoint = endpoints[self->next_endpoint_++ % endpoints.size()];
    self->peer_ = to_string(endpoint);
    Down down;
    std::vector<tcp::endpoint> addresses;
    error_code failure = co_await resolve(self, endpoint, addresses);
    if (failure) {
        down.why = fmt::format("the rendezvous host {} cannot be resolved: {}", endpoint.host,
                               failure.message());
        co_return down;
    }
    for (const tcp::endpoint& address : addresses) {
        if (self->is_stopping_) {
            co_return down;
        }
        failure = co_await connect(self, address);
        if (!failure) {
            break;
        }
    }
    if (failure) {
        down.why = fmt::format("cannot connect to the rendezvous at {}: {}", self->peer_,
                               failure.message());
        co_return down;
    }
    Result<AgentHandshake::Finish> greeting = co_await shake_hands(self);
    if (self->is_stopping_) {
        co_return down;
    }
    if (!greeting) {
        down.why = greeting.error().what;
        down.is_final = greeting.error().code == ErrorCode::Refused ||
                        greeting.error().code == ErrorCode::BadSecret ||
                        greeting.error().code == ErrorCode::BadMessage;
        co_return down;
    }
    self->connection_->secure(greeting->keys);
    self->is_up_ = true;
    self->last_reported_.clear();
    error_code ignored;
    const tcp::endpoint local = self->connection_->socket().local_endpoint(ignored);
    self->events_.on_up(local.address().to_string());
    std::function<void(std::string_view)> on_body = [impl = self.get()](std::string_view body) {
        impl->take(body);
    };
    co_await Connection::carry(self->connection_, std::move(on_body));
    down.why =
        fmt::format("lost the rendezvous at {}: {}", self->peer_, self->connection_->why_ended());
    co_return down;
}

asio::awaitable<error_code> RendezvousClient::Impl::resolve(Self self, Endpoint endpoint,
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

asio::awaitable<error_code> RendezvousClient::Impl::connect(Self self, tcp::endpoint address) {
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

asio::awaitable<Result<AgentHandshake::Finish>> RendezvousClient::Impl::shake_hands(Self self) {
    const std::shared_ptr<Connection> connection = self->connection_;
    const AgentHandshake handshake(self->options_.secret, self->options_.job, random_nonce());
    self->arm_deadline(self->options_.limits.hello_timeout);
    const auto [unsent, sent] = co_await asio::async_write(
        connection->socket(), asio::buffer(handshake.hello()), asio::as_tuple(asio::use_awaitable));
    if (unsent) {
        co_return self->handshake_error(unsent);
    }
    // Whatever else serves there may send less than an answer and wait: the first bytes tell.
    std::array<char, kAnswerBytes> answer{};
    const auto [unread, head] =
        co_await asio::async_read(connection->socket(), asio::buffer(answer, kMagic.size()),
                                  asio::as_tuple(asio::use_awaitable));
    const std::string_view bytes(answer.data(), answer.size());
    if (unread) {
        co_return self->handshake_error(unread);
    }
    if (bytes.starts_with(kMagic)) {
        const auto [cut_off, rest] =
            co_await asio::async_read(connection->socket(), asio::buffer(answer) + kMagic.size(),
                                      asio::as_tuple(asio::use_awaitable));
        if (cut_off) {
            co_return self->handshake_error(cut_off);
        }
    }
    Result<AgentHandshake::Finish> finish = handshake.finish(bytes, self->peer_);
    if (finish) {
        const auto [unproved, count] = co_await asio::async_write(
            connection->socket(), asio::buffer(finish->proof), asio::as_tuple(asio::use_awaitable));
        if (unproved) {
            co_return self->handshake_error(unproved);
        }
    }
    self->disarm_deadline();
    co_return finish;
}

// ---------------------------------------------------------------------------------------- helpers

void RendezvousClient::Impl::take(std::string_view body) {
    Result<RendezvousMessage> message = decode_rendezvous_message(body, options_.limits);
    if (!message) {
        connection_->fail(message.error().what);
        return;
    }
    backoff_ = options_.limits.reconnect_backoff_min;
    if (!is_stopping_) {
        events_.on_message(*std::move(message));
    }
}

void RendezvousClient::Impl::report(const Down& down) {
    if (down.is_final || down.why != last_reported_) {
        last_reported_ = down.why;
        events_.on_down(down.why, down.is_final);
    }
}

void RendezvousClient::Impl::arm_deadline(Milliseconds after) {
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

void RendezvousClient::Impl::disarm_deadline() {
    ++deadline_number_;
    deadline_.cancel();
}

Milliseconds RendezvousClient::Impl::next_pause() {
    const Milliseconds least = backoff_ / 2;
    backoff_ = std::min(2 * backoff_, options_.limits.reconnect_backoff_max);
    return least + Milliseconds(options_.rng.below(static_cast<std::uint64_t>(least.count()) + 1));
}

Error RendezvousClient::Impl::handshake_error(const error_code& failure) const {
    if (is_timed_out_) {
        return Error{ErrorCode::TimedOut,
                     fmt::format("what listens at {} does not answer as a ddprun rendezvous within "
                                 "{} ms",
                                 peer_, options_.limits.hello_timeout.count())};
    }
    return Error{
        ErrorCode::ConnectionLost,
        fmt::format("lost the rendezvous at {} in the handshake: {}", peer_,
                    failure == asio::error::eof ? "it closed the connection" : failure.message())};
}

// ---------------------------------------------------------------------------------------- the Link

RendezvousClient::RendezvousClient(asio::io_context& io, ClientOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}

RendezvousClient::~RendezvousClient() {
    impl_->abandon();
}

void RendezvousClient::start(LinkEvents events) {
    impl_->start(std::move(events));
}

void RendezvousClient::send(const AgentMessage& message) {
    impl_->send(message);
}

void RendezvousClient::stop(std::function<void()> done) {
    impl_->stop(std::move(done));
}

}  // namespace ddprun::rdzv
