#include "agent/notify/http_delivery.hpp"

#include <chrono>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <fmt/format.h>

namespace ddprun::agent {

namespace asio = boost::asio;
namespace http = boost::beast::http;

HttpDelivery::HttpDelivery(asio::io_context& io, const Limits& limits, NotifyUrl url, OnEnd on_end)
    : io_(io),
      limits_(limits),
      url_(std::move(url)),
      on_end_(std::move(on_end)),
      connection_(io, limits.notice_answer_bytes_max, url_.is_tls) {}

void HttpDelivery::begin(const std::string& line) {
    asio::co_spawn(io_, deliver(line), asio::detached);
}

void HttpDelivery::cancel() {
    is_cancelled_ = true;
    connection_.cancel();
}

asio::awaitable<void> HttpDelivery::deliver(std::string line) {
    const std::string fault = co_await post(std::move(line));
    connection_.close();
    if (!is_cancelled_) {
        on_end_(fault);
    }
}

/// The status says it all: what follows is not read.
asio::awaitable<std::string> HttpDelivery::post(std::string line) {
    using rdzv::HttpConnection;
    HttpConnection::Request request(http::verb::post, url_.path, 11, std::move(line));
    request.set(http::field::host, url_.authority);
    request.set(http::field::user_agent, "ddprun");
    request.set(http::field::content_type, "application/json");
    request.keep_alive(false);
    request.prepare_payload();
    HttpConnection::AnswerParser answer;
    connection_.set_deadline(std::chrono::steady_clock::now() + limits_.notice_timeout);
    HttpConnection::Failure failure = co_await connection_.connect(url_.server);
    if (!failure) {
        failure = co_await connection_.ask(std::move(request), answer);
    }
    if (failure) {
        co_return failure.message();
    }
    constexpr unsigned kOk = 200;
    constexpr unsigned kRedirected = 300;
    const unsigned status = answer.get().result_int();
    const bool is_taken = status >= kOk && status < kRedirected;
    co_return is_taken ? std::string() : fmt::format("HTTP status {}", status);
}

}  // namespace ddprun::agent
