#include "agent/notices/aws_notices.hpp"

#include <chrono>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

namespace ddprun::agent {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

/// g++ 12 takes a temporary one in a coroutine for uninitialised.
const Result<void> kAsked;
constexpr char kTokenPath[] = "/latest/api/token";
constexpr char kSpotPath[] = "/latest/meta-data/spot/instance-action";
constexpr char kRebalancePath[] = "/latest/meta-data/events/recommendations/rebalance";
constexpr char kTokenSeconds[] = "600";
constexpr std::chrono::seconds kTokenKept{300};
constexpr unsigned kHttpOk = 200;
constexpr unsigned kHttpUnauthorized = 401;
constexpr unsigned kHttpNotFound = 404;

}  // namespace

AwsNotices::AwsNotices(asio::io_context& io, const Limits& limits, rdzv::Endpoint server,
                       NoticeEvents events)
    : io_(io),
      limits_(limits),
      server_(std::move(server)),
      events_(std::move(events)),
      connection_(io, 2 * limits.drain_text_bytes_max),
      pause_(io) {}

void AwsNotices::start() {
    asio::co_spawn(io_, watch(), asio::detached);
}

void AwsNotices::stop() {
    is_stopped_ = true;
    pause_.cancel();
    connection_.cancel();
}

asio::awaitable<void> AwsNotices::watch() {
    while (!is_stopped_) {
        const Result<void> asked = co_await ask_all();
        if (is_stopped_) {
            break;
        }
        say_once(asked);
        pause_.expires_after(limits_.drain_ask_every);
        co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
    }
}

asio::awaitable<Result<void>> AwsNotices::ask_all() {
    if (token_.empty() || std::chrono::steady_clock::now() >= token_until_) {
        const Result<void> renewed = co_await renew_token();
        if (!renewed) {
            co_return renewed.error();
        }
    }
    const Result<std::string> spot = co_await read(kSpotPath);
    if (!spot) {
        co_return spot.error();
    }
    const Result<void> taken = take_spot(*spot);
    if (!taken) {
        co_return taken.error();
    }
    const Result<std::string> rebalance = co_await read(kRebalancePath);
    if (!rebalance) {
        co_return rebalance.error();
    }
    take_rebalance(*rebalance);
    co_return kAsked;
}

asio::awaitable<Result<void>> AwsNotices::renew_token() {
    token_.clear();
    const Result<Answer> answer = co_await exchange(http::verb::put, kTokenPath);
    if (!answer) {
        // A server that is one hop too far away answers all but this.
        const std::string what =
            answer.error().what + "; in a container the instance needs a hop limit of 2";
        co_return problem(what);
    }
    if (answer->result_int() != kHttpOk || answer->body().empty()) {
        co_return problem(fmt::format("it gives no token (HTTP status {})", answer->result_int()));
    }
    token_ = answer->body();
    token_until_ = std::chrono::steady_clock::now() + kTokenKept;
    co_return kAsked;
}

/// Empty: there is nothing of the kind.
asio::awaitable<Result<std::string>> AwsNotices::read(std::string path) {
    const Result<Answer> answer = co_await exchange(http::verb::get, path);
    if (!answer) {
        co_return problem(answer.error().what);
    }
    const unsigned status = answer->result_int();
    std::string body;
    if (status == kHttpOk) {
        body = answer->body();
    } else if (status != kHttpNotFound) {
        if (status == kHttpUnauthorized) {
            token_.clear();
        }
        co_return problem(fmt::format("{} has HTTP status {}", path, status));
    }
    co_return body;
}

/// Each over a connection of its own: who asks so rarely finds none open.
asio::awaitable<Result<AwsNotices::Answer>> AwsNotices::exchange(http::verb verb,
                                                                 std::string path) {
    using rdzv::HttpConnection;
    HttpConnection::Request request(verb, path, 11);
    request.set(http::field::host, server_.host);
    request.set(http::field::user_agent, "ddprun");
    request.keep_alive(false);
    if (verb == http::verb::put) {
        request.set("X-aws-ec2-metadata-token-ttl-seconds", kTokenSeconds);
        request.prepare_payload();
    } else {
        request.set("X-aws-ec2-metadata-token", token_);
    }
    HttpConnection::AnswerParser answer;
    answer.body_limit(limits_.drain_text_bytes_max);
    connection_.set_deadline(std::chrono::steady_clock::now() + limits_.drain_ask_timeout);
    HttpConnection::Failure failure = co_await connection_.connect(server_);
    if (!failure) {
        connection_.set_deadline(std::chrono::steady_clock::now() + limits_.drain_ask_timeout);
        failure = co_await connection_.ask(std::move(request), answer);
    }
    if (!failure) {
        failure = co_await connection_.read(answer);
    }
    connection_.close();
    if (failure) {
        co_return Error{ErrorCode::ConnectionLost, failure.message()};
    }
    co_return answer.release();
}

Result<void> AwsNotices::take_spot(const std::string& body) {
    if (body.empty() || std::exchange(spot_, body) == body) {
        return {};
    }
    const Result<LeaveNotice> notice = read_spot_notice(body, read_clocks());
    if (!notice) {
        return problem(notice.error().what);
    }
    events_.on_notice(*notice);
    return {};
}

void AwsNotices::take_rebalance(const std::string& body) {
    if (!body.empty() && std::exchange(rebalance_, body) != body) {
        events_.on_notice(rebalance_notice());
    }
}

Error AwsNotices::problem(const std::string& what) const {
    return Error{ErrorCode::Unreachable,
                 fmt::format("--drain-on aws: the metadata server at {}: {}",
                             rdzv::to_string(server_), what)};
}

void AwsNotices::say_once(const Result<void>& asked) {
    const std::string what = asked ? "" : asked.error().what;
    if (std::exchange(said_, what) != what && !what.empty()) {
        events_.say(fmt::format("{}; asking again every {} s", what,
                                limits_.drain_ask_every.count() / 1000));
    }
}

}  // namespace ddprun::agent
