#include "rendezvous/client/rendezvous_client.hpp"

#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

RendezvousClient::RendezvousClient(asio::io_context& io, ClientOptions options)
    : options_(std::move(options)),
      io_(io),
      choice_(options_.endpoints, options_.limits, options_.rng),
      dialer_(io, dial_options()),
      pause_(io),
      answer_wait_(io, [this] {
          if (const Up* const up = std::get_if<Up>(&state_)) {
              choice_.nobody_leads();
              up->connection.fail("nobody leads");
          }
      }) {}

RendezvousClient::~RendezvousClient() {
    if (Up* const up = std::get_if<Up>(&state_)) {
        up->connection.fail("given up");
    }
}

DialOptions RendezvousClient::dial_options() {
    DialOptions dial{.secret = options_.secret,
                     .tls = options_.tls,
                     .job = options_.job,
                     .limits = options_.limits};
    dial.on_resolved = [this](const Endpoint& asked, std::vector<Endpoint>& addresses) {
        if (options_.before_attempt) {
            options_.before_attempt(asked, addresses, is_daemon_lasting_);
        }
    };
    return dial;
}

// --------------------------------------------------------------------------------- called by owner

void RendezvousClient::start(LinkEvents events) {
    DDP_CHECK(std::holds_alternative<Idle>(state_));
    events_ = std::move(events);
    state_ = Searching{};
    asio::co_spawn(io_, run(), asio::detached);
}

void RendezvousClient::send(const AgentMessage& message) {
    Up* const up = std::get_if<Up>(&state_);
    if (up == nullptr) {
        return;
    }
    AgentMessage telling = message;
    const std::optional<Milliseconds> patience = choice_.asking(telling);
    up->connection.send(encode(telling));
    if (patience) {
        answer_wait_.set(std::chrono::steady_clock::now() + *patience);
    }
}

void RendezvousClient::obey(const OperatorOrder& order, const std::string& /*from*/,
                            OrderAnswer answer) {
    answer({.fault = OrderFault::Conflict,
            .event = 0,
            .text = fmt::format("orders for job {} go to its rendezvous: --rdzv-endpoint {} "
                                "--rdzv-id {} --operator-secret-file FILE",
                                order.job.value(), to_string(options_.endpoints.front()),
                                order.job.value())},
           std::nullopt);
}

void RendezvousClient::drop(const std::string& why) {
    if (Up* const up = std::get_if<Up>(&state_)) {
        choice_.fell_silent();
        up->connection.fail(why);
    }
}

void RendezvousClient::stop(std::function<void()> done) {
    DDP_CHECK(!is_stopping());
    if (std::holds_alternative<Idle>(state_)) {
        asio::post(io_, std::move(done));
        return;
    }
    if (Up* const up = std::get_if<Up>(&state_)) {
        up->connection.finish();
    }
    state_ = Stopping{std::move(done)};  // run() calls it
    dialer_.cancel();
    pause_.cancel();
    answer_wait_.set(std::nullopt);
}

// --------------------------------------------------------------------------------------- attempts

asio::awaitable<void> RendezvousClient::run() {
    // No event may come from inside start().
    co_await asio::post(io_, asio::use_awaitable);
    while (!is_stopping()) {
        const EndpointAttempt next = choice_.next();
        if (next.pause > Milliseconds::zero()) {
            pause_.expires_after(next.pause);
            const auto [cancelled] =
                co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
            static_cast<void>(cancelled);  // is_stopping() says it
        }
        if (is_stopping()) {
            break;
        }
        const Down down = co_await attempt(next);
        answer_wait_.set(std::nullopt);
        if (is_stopping()) {
            break;
        }
        if (down.is_final) {
            state_ = Idle{};
            report(down);
            co_return;
        }
        report(down);
    }
    std::function<void()> done = std::move(std::get<Stopping>(state_).done);
    state_ = Idle{};
    asio::post(io_, std::move(done));  // after every handler of ours that was cancelled
}

asio::awaitable<RendezvousClient::Down> RendezvousClient::attempt(EndpointAttempt asked) {
    Down down;
    const DialTarget target{.endpoint = asked.endpoint,
                            .connect_timeout = asked.connect_timeout,
                            .hello_timeout = asked.hello_timeout};
    const Result<std::unique_ptr<Connection>> dialled = co_await dialer_.dial(target);
    if (!dialled) {
        choice_.failed(dialled.error().code == ErrorCode::TimedOut);
        down.why = dialled.error().what;
        down.is_final = is_final(dialled.error());
        co_return down;
    }
    Connection& connection = **dialled;
    if (is_stopping()) {
        connection.fail("given up");
        co_return down;
    }
    state_.emplace<Up>(connection);
    last_reported_.clear();
    tell_up(connection.socket());
    std::function<void(std::string_view)> on_body = [this](std::string_view body) { take(body); };
    co_await connection.carry(std::move(on_body));
    if (!is_stopping()) {
        state_ = Searching{};
    }
    down.why = fmt::format("lost the rendezvous at {}: {}", to_string(asked.endpoint),
                           connection.why_ended());
    co_return down;
}

void RendezvousClient::tell_up(const Connection::Socket& socket) {
    error_code ignored;
    const tcp::endpoint local = socket.local_endpoint(ignored);
    const tcp::endpoint remote = socket.remote_endpoint(ignored);
    events_.on_up(local.address().to_string(),
                  Endpoint{remote.address().to_string(), remote.port()});
}

// ---------------------------------------------------------------------------------------- helpers

void RendezvousClient::take(std::string_view body) {
    Up* const up = std::get_if<Up>(&state_);
    if (up == nullptr) {
        return;
    }
    Result<RendezvousMessage> message = decode_rendezvous_message(body, options_.limits);
    if (!message) {
        up->connection.fail(message.error().what);
        return;
    }
    if (const Redirect* redirect = std::get_if<Redirect>(&*message)) {
        choice_.redirected(redirect->endpoint);
        up->connection.fail(redirect->endpoint.empty()
                                ? "no daemon leads at the moment"
                                : fmt::format("the daemon at {} leads", redirect->endpoint));
        return;
    }
    if (const Accepted* accepted = std::get_if<Accepted>(&*message)) {
        is_daemon_lasting_ = accepted->is_lasting;
        up->connection.expect_beats();
    }
    answer_wait_.set(std::nullopt);
    choice_.answered();
    events_.on_message(*std::move(message));
}

void RendezvousClient::report(const Down& down) {
    if (down.is_final || down.why != last_reported_) {
        last_reported_ = down.why;
        events_.on_down(down.why, down.is_final);
    }
}

}  // namespace ddprun::rdzv
