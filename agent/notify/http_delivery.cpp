#include "agent/notify/http_delivery.hpp"

#include <chrono>
#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

namespace ddprun::agent {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

HttpDelivery::HttpDelivery(asio::io_context& io, const Limits& limits, NotifyUrl url, OnEnd on_end)
    : io_(io),
      limits_(limits),
      url_(std::move(url)),
      on_end_(std::move(on_end)),
      lookup_(io),
      context_(asio::ssl::context::tls_client) {
    if (url_.is_tls) {
        error_code ignored;  // no authorities: no certificate is taken
        context_.set_default_verify_paths(ignored);
        context_.set_verify_mode(asio::ssl::verify_peer);
        context_.set_verify_callback(asio::ssl::host_name_verification(url_.server.host));
    }
}

void HttpDelivery::begin(const std::string& line) {
    asio::co_spawn(io_, deliver(line), asio::detached);
}

void HttpDelivery::cancel() {
    is_cancelled_ = true;
    lookup_.cancel();
    close();
}

void HttpDelivery::close() {
    if (stream_) {
        error_code ignored;
        stream_->next_layer().socket().close(ignored);
    }
}

asio::awaitable<void> HttpDelivery::deliver(std::string line) {
    until_ = std::chrono::steady_clock::now() + limits_.notice_timeout;
    const std::string fault = co_await post(std::move(line));
    close();
    if (!is_cancelled_) {
        on_end_(fault);
    }
}

asio::awaitable<std::string> HttpDelivery::post(std::string line) {
    std::string fault = co_await connect();
    if (fault.empty() && url_.is_tls) {
        fault = co_await exchange(*stream_, std::move(line));
    } else if (fault.empty()) {
        fault = co_await exchange(stream_->next_layer(), std::move(line));
    }
    co_return fault;
}

asio::awaitable<std::string> HttpDelivery::connect() {
    const rdzv::NameLookup::Answer found = co_await lookup_.resolve(url_.server.host, until_);
    if (found.failure || is_cancelled_) {
        co_return found.failure.message();
    }
    std::vector<asio::ip::tcp::endpoint> addresses;
    for (const asio::ip::address& one : found.addresses) {
        addresses.emplace_back(one, url_.server.port);
    }
    stream_.emplace(io_, context_);
    stream_->next_layer().expires_at(until_);
    const auto [unreachable, address] = co_await stream_->next_layer().async_connect(
        addresses, asio::as_tuple(asio::use_awaitable));
    if (unreachable) {
        co_return unreachable.message();
    }
    if (url_.is_tls) {
        // Which of its names is meant, for a server that has several.
        std::string name = url_.server.host;
        ::SSL_ctrl(stream_->native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME,
                   TLSEXT_NAMETYPE_host_name, name.data());
        const auto [untrusted] = co_await stream_->async_handshake(
            asio::ssl::stream_base::client, asio::as_tuple(asio::use_awaitable));
        if (untrusted) {
            co_return untrusted.message();
        }
    }
    co_return std::string();
}

/// The status says it all: what follows is not read.
template <typename Through>
asio::awaitable<std::string> HttpDelivery::exchange(Through& stream, std::string line) {
    http::request<http::string_body> request(http::verb::post, url_.path, 11, std::move(line));
    request.set(http::field::host, url_.authority);
    request.set(http::field::user_agent, "ddprun");
    request.set(http::field::content_type, "application/json");
    request.keep_alive(false);
    request.prepare_payload();
    const auto [unsent, sent] =
        co_await http::async_write(stream, request, asio::as_tuple(asio::use_awaitable));
    if (unsent) {
        co_return unsent.message();
    }
    boost::beast::flat_buffer buffer(limits_.notice_answer_bytes_max);
    http::response_parser<http::string_body> parser;
    const auto [failure, count] = co_await http::async_read_header(
        stream, buffer, parser, asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return failure.message();
    }
    constexpr unsigned kOk = 200;
    constexpr unsigned kRedirected = 300;
    const unsigned status = parser.get().result_int();
    const bool is_taken = status >= kOk && status < kRedirected;
    co_return is_taken ? std::string() : fmt::format("HTTP status {}", status);
}

}  // namespace ddprun::agent
