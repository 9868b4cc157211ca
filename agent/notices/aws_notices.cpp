#include "agent/notices/aws_notices.hpp"

#include <chrono>
#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
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
      lookup_(io),
      stream_(io),
      pause_(io) {}

void AwsNotices::start() {
    asio::co_spawn(io_, watch(), asio::detached);
}

void AwsNotices::stop() {
    is_stopped_ = true;
    pause_.cancel();
    lookup_.cancel();
    disconnect();
}

asio::awaitable<void> AwsNotices::watch() {
    while (!is_stopped_) {
        const Result<void> asked = co_await ask_all();
        disconnect();  // of an exchange that failed
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

asio::awaitable<Result<void>> AwsNotices::connect() {
    const Instant until = std::chrono::steady_clock::now() + limits_.drain_ask_timeout;
    const rdzv::NameLookup::Answer found = co_await lookup_.resolve(server_.host, until);
    if (found.failure) {
        co_return lost(found.failure);
    }
    std::vector<asio::ip::tcp::endpoint> addresses;
    for (const asio::ip::address& one : found.addresses) {
        addresses.emplace_back(one, server_.port);
    }
    stream_.expires_after(limits_.drain_ask_timeout);
    const auto [failure, address] =
        co_await stream_.async_connect(addresses, asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost(failure);
    }
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
    if (answer->status != kHttpOk || answer->body.empty()) {
        co_return problem(fmt::format("it gives no token (HTTP status {})", answer->status));
    }
    token_ = answer->body;
    token_until_ = std::chrono::steady_clock::now() + kTokenKept;
    co_return kAsked;
}

/// Empty: there is nothing of the kind.
asio::awaitable<Result<std::string>> AwsNotices::read(std::string path) {
    const Result<Answer> answer = co_await exchange(http::verb::get, path);
    if (!answer) {
        co_return problem(answer.error().what);
    }
    std::string body;
    if (answer->status == kHttpOk) {
        body = answer->body;
    } else if (answer->status != kHttpNotFound) {
        if (answer->status == kHttpUnauthorized) {
            token_.clear();
        }
        co_return problem(fmt::format("{} has HTTP status {}", path, answer->status));
    }
    co_return body;
}

/// Each over a connection of its own: who asks so rarely finds none open.
asio::awaitable<Result<AwsNotices::Answer>> AwsNotices::exchange(http::verb verb,
                                                                 std::string path) {
    const Result<void> connected = co_await connect();
    if (!connected) {
        co_return connected.error();
    }
    http::request<http::empty_body> request(verb, path, 11);
    request.set(http::field::host, server_.host);
    request.set(http::field::user_agent, "ddprun");
    request.keep_alive(false);
    if (verb == http::verb::put) {
        request.set("X-aws-ec2-metadata-token-ttl-seconds", kTokenSeconds);
        request.prepare_payload();
    } else {
        request.set("X-aws-ec2-metadata-token", token_);
    }
    stream_.expires_after(limits_.drain_ask_timeout);
    const auto [unsent, sent] =
        co_await http::async_write(stream_, request, asio::as_tuple(asio::use_awaitable));
    if (unsent) {
        co_return lost(unsent);
    }
    boost::beast::flat_buffer buffer(2 * limits_.drain_text_bytes_max);
    http::response_parser<http::string_body> parser;
    parser.body_limit(limits_.drain_text_bytes_max);
    const auto [failure, count] =
        co_await http::async_read(stream_, buffer, parser, asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost(failure);
    }
    disconnect();
    Answer answer;
    answer.status = parser.get().result_int();
    answer.body = std::move(parser.get().body());
    co_return answer;
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

Error AwsNotices::lost(const boost::system::error_code& failure) {
    return Error{ErrorCode::ConnectionLost, failure.message()};
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

void AwsNotices::disconnect() {
    boost::system::error_code ignored;
    stream_.socket().close(ignored);
}

}  // namespace ddprun::agent
