#include "rendezvous/client/control_client.hpp"

#include <functional>
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
    const std::string& body;
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
    question.deadline.expires_after(options.limits.answer_timeout);
    question.deadline.async_wait([&connection](boost::system::error_code cancelled) {
        if (!cancelled) {
            connection.fail("no answer in time");
        }
    });
    connection.send(question.body);
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

/// A question or order, and the role of the connection that carries it.
struct Speech {
    PeerRole role = PeerRole::Control;
    std::string body;
};

/// Returns the answer of the daemon at `endpoint`.
Result<std::string> ask_one(const ControlOptions& options, const Speech& speech,
                            const Endpoint& endpoint) {
    asio::io_context io(1);
    Question question{options,
                      speech.body,
                      endpoint,
                      Dialer(io, DialOptions{.secret = options.secret,
                                             .tls = options.tls,
                                             .job = options.job,
                                             .role = speech.role,
                                             .limits = options.limits,
                                             .on_resolved = {}}),
                      asio::steady_timer(io),
                      nullptr,
                      Error{ErrorCode::ConnectionLost, "nothing was asked"}};
    asio::co_spawn(io, ask(question), asio::detached);
    io.run();
    return std::move(question.answer);
}

/// The redirect in a daemon's answer `body`, if it is one.
std::optional<Redirect> redirect_in(const std::string& body, const Limits& limits) {
    const Result<RendezvousMessage> message = decode_rendezvous_message(body, limits);
    const Redirect* const redirect = message ? std::get_if<Redirect>(&*message) : nullptr;
    return redirect != nullptr ? std::optional(*redirect) : std::nullopt;
}

struct Answer {
    std::string body;
    Endpoint from;
};

/// Returns the answer of the daemon that decides, following redirects.
Result<Answer> ask_leader(const ControlOptions& options, const Speech& speech) {
    Endpoint endpoint = options.endpoint;
    std::string way;  // for people
    for (int redirects = 0;; ++redirects) {
        Result<std::string> body = ask_one(options, speech, endpoint);
        if (!body) {
            return way.empty() ? body.error() : Error{body.error().code, way + body.error().what};
        }
        const std::optional<Redirect> redirect = redirect_in(*body, options.limits);
        if (!redirect) {
            return Answer{*std::move(body), endpoint};
        }
        const std::string from = to_string(endpoint);
        const Result<Endpoint> leader = parse_endpoint(redirect->endpoint);
        if (!leader || redirects >= options.limits.redirects_max) {
            return Error{ErrorCode::ConnectionLost,
                         fmt::format("{}the rendezvous at {} is one of several, and none of "
                                     "them leads at the moment; ask again",
                                     way, from)};
        }
        way +=
            fmt::format("the rendezvous at {} follows the one at {}: ", from, redirect->endpoint);
        endpoint = *leader;
    }
}

Error not_understood(const Endpoint& from, const Error& why) {
    return {why.code, fmt::format("the rendezvous at {} says what we do not understand: {}",
                                  to_string(from), why.what)};
}

}  // namespace

Result<ControlAnswer> ask_status(const ControlOptions& options) {
    Result<Answer> answer =
        ask_leader(options, {PeerRole::Control, encode(AskStatus{options.job})});
    if (!answer) {
        return answer.error();
    }
    Result<StatusReply> reply = decode<StatusReply>(answer->body, options.limits);
    if (!reply) {
        return not_understood(answer->from, reply.error());
    }
    return ControlAnswer{std::move(answer->body), *std::move(reply), answer->from};
}

Result<OperatorReply> give_order(const ControlOptions& options, const OperatorOrder& order) {
    const Result<Answer> answer = ask_leader(options, {PeerRole::Operator, encode(order)});
    if (!answer) {
        return answer.error();
    }
    Result<OperatorReply> reply = decode<OperatorReply>(answer->body, options.limits);
    if (!reply) {
        return not_understood(answer->from, reply.error());
    }
    return reply;
}

}  // namespace ddprun::rdzv
