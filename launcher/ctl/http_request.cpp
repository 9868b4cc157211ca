#include "launcher/ctl/http_request.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/transport/connection.hpp"

namespace ddprun::launcher {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr unsigned kHttpVersion = 11;

/// Turns an answer that reports a failure into an error.
Error refused(const std::string& peer, http::status status, const std::string& body) {
    const nlohmann::json object = nlohmann::json::parse(body, nullptr, false);
    const bool says_why =
        object.is_object() && object.contains("error") && object.at("error").is_string();
    const ErrorCode code = status == http::status::not_found             ? ErrorCode::NotFound
                           : status == http::status::service_unavailable ? ErrorCode::Unreachable
                                                                         : ErrorCode::Refused;
    return {code, fmt::format("{}: {}", peer,
                              says_why ? object.at("error").get<std::string>()
                                       : fmt::format("HTTP {}", static_cast<unsigned>(status)))};
}

}  // namespace

Error HttpRequest::lost(const error_code& failure) const {
    const std::string& tls = stream_->why_failed();
    return tls.empty()
               ? Error{ErrorCode::ConnectionLost,
                       fmt::format("{} has closed the connection: {}", peer_, failure.message())}
               : Error{ErrorCode::Refused, fmt::format("no TLS with {}: {}", peer_, tls)};
}

Result<void> HttpRequest::take(UniqueFd connected, int family) {
    if (tls_) {
        return shake_hands(std::move(connected), family);
    }
    rdzv::HttpStream::Socket socket(io_);
    error_code failure;
    socket.assign(asio::generic::stream_protocol(family, 0), connected.get(), failure);
    if (failure) {
        return Error{ErrorCode::System, fmt::format("asking {}: {}", peer_, failure.message())};
    }
    (void)connected.release();
    stream_.emplace(std::move(socket));
    return {};
}

Result<void> HttpRequest::shake_hands(UniqueFd connected, int family) {
    using asio::ip::tcp;
    tcp::socket socket(io_);
    error_code failure;
    socket.assign(family == AF_INET6 ? tcp::v6() : tcp::v4(), connected.get(), failure);
    if (failure) {
        return Error{ErrorCode::System, fmt::format("asking {}: {}", peer_, failure.message())};
    }
    (void)connected.release();
    rdzv::Connection connection(std::move(socket), limits_);
    std::optional<Result<void>> shaken;
    asio::co_spawn(
        io_, connection.shake_tls(tls_, {}),
        [&shaken](const std::exception_ptr&, Result<void> result) { shaken = std::move(result); });
    io_.run_for(limits_.connect_timeout);
    if (!shaken) {
        connection.close();
        io_.restart();
        io_.run();
        shaken = Error{ErrorCode::TimedOut, "it does not answer"};
    }
    if (!*shaken) {
        return Error{shaken->error().code,
                     fmt::format("no TLS with {}: {}", peer_, shaken->error().what)};
    }
    rdzv::Connection::Released released = connection.release();
    stream_.emplace(rdzv::HttpStream::Socket(std::move(released.socket)), std::move(released.tls));
    return {};
}

/// Runs the operation that `begin` starts with a handler, and returns its result; blocks.
template <typename Begin>
error_code HttpRequest::finish(Begin begin) {
    error_code result;
    begin([&result](error_code failure, std::size_t) { result = failure; });
    io_.restart();
    io_.run();
    return result;
}

Result<void> HttpRequest::post(UniqueFd connected, const std::string& target,
                               const std::string& json) {
    if (const Result<void> taken = take(std::move(connected), AF_UNIX); !taken) {
        return taken.error();
    }
    http::request<http::string_body> request(http::verb::post, target, kHttpVersion, json);
    request.set(http::field::host, "localhost");
    request.set(http::field::content_type, "application/json");
    request.keep_alive(false);
    request.prepare_payload();
    const error_code failure =
        finish([&](auto handler) { http::async_write(*stream_, request, handler); });
    return failure ? Result<void>(lost(failure)) : Result<void>();
}

Result<void> HttpRequest::send(UniqueFd connected, int family, const std::string& host,
                               const std::string& target, const std::string& token) {
    if (const Result<void> taken = take(std::move(connected), family); !taken) {
        return taken.error();
    }
    http::request<http::empty_body> request(http::verb::get, target, kHttpVersion);
    request.set(http::field::host, host);
    request.set("Sec-Fetch-Site", "none");  // This is no page of another site.
    if (!token.empty()) {
        request.set(http::field::authorization, "Bearer " + token);
    }
    request.keep_alive(false);
    const error_code failure =
        finish([&](auto handler) { http::async_write(*stream_, request, handler); });
    return failure ? Result<void>(lost(failure)) : Result<void>();
}

Result<std::string> HttpRequest::read_all() {
    Result<HttpAnswer> answer = read_answer();
    if (!answer) {
        return answer.error();
    }
    const auto status = http::int_to_status(answer->status);
    if (status != http::status::ok) {
        return refused(peer_, status, answer->body);
    }
    return std::move(answer->body);
}

Result<HttpAnswer> HttpRequest::read_answer() {
    http::response_parser<http::string_body> parser;
    parser.body_limit(limits_.run_answer_bytes_max);
    std::optional<error_code> done;
    http::async_read(*stream_, buffer_, parser,
                     [&done](error_code failure, std::size_t) { done = failure; });
    io_.restart();
    io_.run_for(limits_.run_answer_timeout);
    if (!done) {
        stream_->socket().close();
        io_.run();
        return Error{ErrorCode::TimedOut,
                     fmt::format("{} has not answered for {} s; is it stopped?", peer_,
                                 limits_.run_answer_timeout.count() / 1000)};
    }
    if (*done) {
        return lost(*done);
    }
    return HttpAnswer{.status = parser.get().result_int(), .body = std::move(parser.get().body())};
}

Result<void> HttpRequest::copy_to(const TakePiece& take) {
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    error_code failure =
        finish([&](auto handler) { http::async_read_header(*stream_, buffer_, parser, handler); });
    const bool is_answer = parser.is_header_done() && parser.get().result() == http::status::ok;
    std::string piece(limits_.http_batch_bytes_max, '\0');
    std::string complaint;
    while (!failure && !parser.is_done()) {
        parser.get().body().data = piece.data();
        parser.get().body().size = piece.size();
        failure = finish(
            [&](auto handler) { http::async_read_some(*stream_, buffer_, parser, handler); });
        if (failure == http::error::need_buffer) {
            failure = {};
        }
        const std::size_t count = piece.size() - parser.get().body().size;
        if (!is_answer) {
            complaint.append(piece, 0, std::min(count, piece.size() - complaint.size()));
        } else if (!take(std::string_view(piece.data(), count))) {
            return {};
        }
    }
    if (failure) {
        return lost(failure);
    }
    return is_answer ? Result<void>() : refused(peer_, parser.get().result(), complaint);
}

}  // namespace ddprun::launcher
