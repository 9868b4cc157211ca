#include "rendezvous/client/control_client.hpp"

#include <functional>
#include <string_view>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "rendezvous/client/dial.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

struct Question {
    const ControlOptions& options;
    std::shared_ptr<Dialer> dialer;
    asio::steady_timer deadline;
    Result<std::string> answer;
};

asio::awaitable<void> ask(Question& question) {
    const ControlOptions& options = question.options;
    const Result<std::shared_ptr<Connection>> dialled =
        co_await Dialer::dial(question.dialer, options.endpoint);
    if (!dialled) {
        question.answer = dialled.error();
        co_return;
    }
    const std::shared_ptr<Connection> connection = *dialled;
    question.deadline.expires_after(options.limits.hello_timeout);
    question.deadline.async_wait([connection](boost::system::error_code cancelled) {
        if (!cancelled) {
            connection->fail("no answer in time");
        }
    });
    connection->send(encode(AskStatus{options.job}));
    bool is_answered = false;
    std::function<void(std::string_view)> on_body = [&](std::string_view body) {
        is_answered = true;
        question.answer = std::string(body);
        connection->finish();
    };
    co_await Connection::carry(connection, std::move(on_body));
    question.deadline.cancel();
    if (!is_answered) {
        question.answer = Error{ErrorCode::ConnectionLost,
                                fmt::format("the rendezvous at {} did not answer: {}; is it of the "
                                            "same version?",
                                            to_string(options.endpoint), connection->why_ended())};
    }
}

}  // namespace

Result<std::string> ask_status(const ControlOptions& options) {
    asio::io_context io(1);
    DialOptions dial{.secret = options.secret,
                     .tls = options.tls,
                     .job = options.job,
                     .role = PeerRole::Control,
                     .limits = options.limits};
    Question question{options, std::make_shared<Dialer>(io, std::move(dial)),
                      asio::steady_timer(io),
                      Error{ErrorCode::ConnectionLost, "nothing was asked"}};
    asio::co_spawn(io, ask(question), asio::detached);
    io.run();
    if (!question.answer) {
        return question.answer;
    }
    const Result<StatusReply> reply = decode_status_reply(*question.answer, options.limits);
    if (!reply) {
        return Error{reply.error().code,
                     fmt::format("the rendezvous at {} says what we do not understand: {}",
                                 to_string(options.endpoint), reply.error().what)};
    }
    return question.answer;
}

}  // namespace ddprun::rdzv
