#include "rendezvous/etcd/etcd_client.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

namespace {

/// g++ 12 takes a temporary one in a coroutine for uninitialised.
const Result<void> kDone;

/// One notification of a watch is far below this.
constexpr std::size_t kLineBytesMax = std::size_t{64} << 10;
/// Buffer of an answer that is no event of a key; more is read piece by piece.
constexpr std::size_t kBufferBytesMax = std::size_t{64} << 10;
constexpr unsigned kOk = 200;

/// Etcd's own word that asking another one, or again, will not help.
bool is_final(unsigned status) {
    constexpr unsigned kRequestTimeout = 408;
    constexpr unsigned kTooManyRequests = 429;
    return status >= 400 && status < 500 && status != kRequestTimeout && status != kTooManyRequests;
}

Instant now() {
    return std::chrono::steady_clock::now();
}

}  // namespace

EtcdClient::EtcdClient(asio::io_context& io, std::vector<Endpoint> etcds, const Limits& limits)
    : etcds_(std::move(etcds)), limits_(limits), connection_(io, kBufferBytesMax) {
    DDP_CHECK(!etcds_.empty());
}

void EtcdClient::cancel() {
    is_cancelled_ = true;
    connection_.cancel();
}

// ------------------------------------------------------------------------------------------- calls

asio::awaitable<Result<std::string>> EtcdClient::call(EtcdRequest request, Milliseconds each,
                                                      Instant until) {
    is_cancelled_ = false;
    Error problem{ErrorCode::TimedOut, "there is no time left to ask etcd"};
    for (std::size_t tried = 0; tried < etcds_.size() && !is_cancelled_ && now() < until; ++tried) {
        connection_.set_deadline(std::min(now() + each, until));
        Result<Answer> answer = co_await attempt(request);
        if (answer && answer->result_int() == kOk) {
            co_return std::move(answer->body());
        }
        if (answer) {
            problem = not_done(*answer);
            if (problem.code == ErrorCode::Refused) {
                break;
            }
        } else {
            problem = answer.error();
        }
        if (!is_cancelled_) {
            try_next();
        }
    }
    co_return problem;
}

asio::awaitable<Result<EtcdClient::Answer>> EtcdClient::attempt(const EtcdRequest& request) {
    const bool was_idle = connection_.is_open();
    Result<Answer> answer = co_await exchange(request);
    if (!answer && was_idle && !connection_.is_late() && !is_cancelled_) {
        // The other side had closed it meanwhile.
        connection_.close();
        answer = co_await exchange(request);
    }
    co_return answer;
}

asio::awaitable<Result<EtcdClient::Answer>> EtcdClient::exchange(const EtcdRequest& request) {
    AnswerParser answer;
    // Records come as base64, several to a page.
    answer.body_limit(2 * limits_.record_bytes_max);
    HttpConnection::Failure failure = co_await send(request, answer);
    if (!failure) {
        failure = co_await connection_.read(answer);
    }
    if (failure) {
        co_return lost(failure);
    }
    if (!answer.keep_alive()) {
        connection_.close();
    }
    co_return answer.release();
}

asio::awaitable<HttpConnection::Failure> EtcdClient::send(const EtcdRequest& request,
                                                          AnswerParser& answer) {
    if (!connection_.is_open()) {
        const HttpConnection::Failure failure = co_await connection_.connect(etcds_[current_]);
        if (failure) {
            co_return failure;
        }
        ask_often_when_silent();
    }
    HttpConnection::Request message(http::verb::post, request.path, 11, request.body);
    message.set(http::field::host, peer());
    message.set(http::field::content_type, "application/json");
    // An etcd that has lost the others then says so instead of being silent for ever.
    message.set("Grpc-Metadata-hasleader", "true");
    message.prepare_payload();
    co_return co_await connection_.ask(std::move(message), answer);
}

/// A watch is silent for hours, and a machine that lost its power is silent, too.
void EtcdClient::ask_often_when_silent() {
    tcp::socket& socket = connection_.socket();
    const int fd = socket.native_handle();
    const int seconds = 1;
    const int probes = 3;
    HttpConnection::Failure ignored;
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    socket.set_option(tcp::no_delay(true), ignored);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

// ----------------------------------------------------------------------------------------- streams

asio::awaitable<Result<void>> EtcdClient::open_stream(EtcdRequest request) {
    is_cancelled_ = false;
    Result<void> begun = Error{ErrorCode::ConnectionLost, "the stream was given up"};
    for (std::size_t tried = 0; tried < etcds_.size() && !begun && !is_cancelled_; ++tried) {
        connection_.close();
        connection_.set_deadline(now() + limits_.etcd_timeout);
        begun = co_await begin_stream(request);
        if (!begun) {
            try_next();
        }
    }
    co_return begun;
}

asio::awaitable<Result<void>> EtcdClient::begin_stream(const EtcdRequest& request) {
    stream_.emplace();
    stream_->body_limit(boost::none);
    const HttpConnection::Failure failure = co_await send(request, *stream_);
    if (failure) {
        co_return lost(failure);
    }
    if (stream_->get().result_int() != kOk) {
        co_return not_done(stream_->get());
    }
    co_return kDone;
}

asio::awaitable<Result<std::string>> EtcdClient::next_line(Milliseconds patience) {
    DDP_CHECK(stream_.has_value());
    Error problem{ErrorCode::ConnectionLost, "the stream was given up"};
    connection_.set_deadline(now() + patience);
    while (!is_cancelled_) {
        std::string& text = stream_->get().body();
        if (const std::size_t end = text.find('\n'); end != std::string::npos) {
            std::string line = text.substr(0, end);
            text.erase(0, end + 1);
            co_return line;
        }
        HttpConnection::Failure failure = asio::error::eof;
        if (!stream_->is_done() && text.size() <= kLineBytesMax) {
            failure = co_await connection_.read_some(*stream_);
        }
        if (failure) {
            problem = lost(failure);
            break;
        }
    }
    try_next();
    co_return problem;
}

// ----------------------------------------------------------------------------------------- helpers

void EtcdClient::try_next() {
    connection_.close();
    current_ = (current_ + 1) % etcds_.size();
}

Error EtcdClient::lost(const HttpConnection::Failure& why) const {
    if (connection_.is_late()) {
        return Error{ErrorCode::TimedOut,
                     fmt::format("{} etcd at {} took too long", connection_.step(), peer())};
    }
    const ErrorCode code =
        why == asio::error::connection_refused ? ErrorCode::Unreachable : ErrorCode::ConnectionLost;
    return Error{
        code, fmt::format("{} etcd at {} failed: {}", connection_.step(), peer(), why.message())};
}

Error EtcdClient::not_done(const Answer& answer) const {
    const std::string said = read_error(answer.body()).value_or("no reason");
    const bool is_full = said.find("space exceeded") != std::string::npos;
    return Error{
        is_final(answer.result_int()) ? ErrorCode::Refused : ErrorCode::System,
        fmt::format("etcd at {} did not do it: {} (HTTP status {}){}", peer(), said,
                    answer.result_int(),
                    is_full ? "; give it a larger --quota-backend-bytes, or compact and defragment "
                              "it, then run: etcdctl alarm disarm"
                            : "")};
}

}  // namespace ddprun::rdzv
