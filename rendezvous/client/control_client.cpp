#include "rendezvous/client/control_client.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "rendezvous/transport/dial.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// Outlives the loop that asks it.
struct Question {
    const ControlOptions& options;
    const Endpoint& endpoint;
    Dialer dialer;
    asio::steady_timer deadline;
    std::unique_ptr<Connection> connection;
    Result<std::string> answer;
};

asio::awaitable<void> ask(Question& question) {
    const ControlOptions& options = question.options;
    const DialTarget target{.endpoint = question.endpoint,
                            .connect_timeout = options.limits.connect_timeout,
                            .hello_timeout = options.limits.hello_timeout};
    Result<std::unique_ptr<Connection>> dialled = co_await question.dialer.dial(target);
    if (!dialled) {
        question.answer = dialled.error();
        co_return;
    }
    question.connection = *std::move(dialled);
    Connection& connection = *question.connection;
    question.deadline.expires_after(options.limits.hello_timeout);
    question.deadline.async_wait([&connection](boost::system::error_code cancelled) {
        if (!cancelled) {
            connection.fail("no answer in time");
        }
    });
    connection.send(encode(AskStatus{options.job}));
    bool is_answered = false;
    std::function<void(std::string_view)> on_body = [&](std::string_view body) {
        is_answered = true;
        question.answer = std::string(body);
        connection.finish();
    };
    co_await connection.carry(std::move(on_body));
    question.deadline.cancel();
    if (!is_answered) {
        question.answer = Error{ErrorCode::ConnectionLost,
                                fmt::format("the rendezvous at {} did not answer: {}; is it of the "
                                            "same version?",
                                            to_string(question.endpoint), connection.why_ended())};
    }
}

/// What the daemon at `endpoint` says.
Result<std::string> ask_one(const ControlOptions& options, const Endpoint& endpoint) {
    asio::io_context io(1);
    Question question{options,
                      endpoint,
                      Dialer(io, DialOptions{.secret = options.secret,
                                             .tls = options.tls,
                                             .job = options.job,
                                             .role = PeerRole::Control,
                                             .limits = options.limits,
                                             .on_resolved = {}}),
                      asio::steady_timer(io),
                      nullptr,
                      Error{ErrorCode::ConnectionLost, "nothing was asked"}};
    asio::co_spawn(io, ask(question), asio::detached);
    io.run();
    return std::move(question.answer);
}

/// Where the daemon that said `body` sends us, if it does.
std::optional<Redirect> redirect_in(const std::string& body, const Limits& limits) {
    const Result<RendezvousMessage> message = decode_rendezvous_message(body, limits);
    const Redirect* const redirect = message ? std::get_if<Redirect>(&*message) : nullptr;
    return redirect != nullptr ? std::optional(*redirect) : std::nullopt;
}

}  // namespace

Result<ControlAnswer> ask_status(const ControlOptions& options) {
    Endpoint endpoint = options.endpoint;
    std::string way;  // for people
    for (int redirects = 0;; ++redirects) {
        Result<std::string> body = ask_one(options, endpoint);
        if (!body) {
            return way.empty() ? body.error()
                               : Error{ErrorCode::ConnectionLost, way + body.error().what};
        }
        const std::string from = to_string(endpoint);
        if (const std::optional<Redirect> redirect = redirect_in(*body, options.limits)) {
            const Result<Endpoint> leader = parse_endpoint(redirect->endpoint);
            if (!leader || redirects >= options.limits.redirects_max) {
                return Error{ErrorCode::ConnectionLost,
                             fmt::format("{}the rendezvous at {} is one of several, and none of "
                                         "them leads at the moment; ask again",
                                         way, from)};
            }
            way += fmt::format("the rendezvous at {} follows the one at {}: ", from,
                               redirect->endpoint);
            endpoint = *leader;
            continue;
        }
        Result<StatusReply> reply = decode_status_reply(*body, options.limits);
        if (!reply) {
            return Error{reply.error().code,
                         fmt::format("the rendezvous at {} says what we do not understand: {}",
                                     from, reply.error().what)};
        }
        return ControlAnswer{*std::move(body), *std::move(reply), endpoint};
    }
}

}  // namespace ddprun::rdzv
