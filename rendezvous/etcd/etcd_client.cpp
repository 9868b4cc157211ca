#include "rendezvous/etcd/etcd_client.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

/// g++ 12 takes a temporary one in a coroutine for uninitialised.
const Result<void> kDone;

/// One notification of a watch is far below this.
constexpr std::size_t kLineBytesMax = std::size_t{64} << 10;
/// Whatever is no event of a key; more is read piece by piece.
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

struct EtcdClient::Stream {
    boost::beast::flat_buffer buffer{kBufferBytesMax};
    http::response_parser<http::string_body> parser;
};

EtcdClient::EtcdClient(asio::io_context& io, std::vector<Endpoint> etcds, const Limits& limits)
    : etcds_(std::move(etcds)), limits_(limits), lookup_(io), socket_(io), deadline_(io, [this] {
          is_timed_out_ = true;
          disconnect();
      }) {
    DDP_CHECK(!etcds_.empty());
}

EtcdClient::~EtcdClient() = default;

void EtcdClient::cancel() {
    is_cancelled_ = true;
    deadline_.set(std::nullopt);
    lookup_.cancel();
    disconnect();
}

// ------------------------------------------------------------------------------------------- calls

asio::awaitable<Result<std::string>> EtcdClient::call(EtcdRequest request, Milliseconds each,
                                                      Instant until) {
    is_cancelled_ = false;
    Error problem{ErrorCode::TimedOut, "there is no time left to ask etcd"};
    for (std::size_t tried = 0; tried < etcds_.size() && !is_cancelled_ && now() < until; ++tried) {
        arm_deadline(std::min(now() + each, until));
        Result<Answer> answer = co_await attempt(request);
        deadline_.set(std::nullopt);
        if (answer && answer->status == kOk) {
            co_return std::move(answer->body);
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
    const bool was_idle = socket_.is_open();
    Result<Answer> answer = co_await exchange(request);
    if (!answer && was_idle && !is_timed_out_ && !is_cancelled_) {
        // The other side had closed it meanwhile.
        disconnect();
        answer = co_await exchange(request);
    }
    co_return answer;
}

asio::awaitable<Result<EtcdClient::Answer>> EtcdClient::exchange(const EtcdRequest& request) {
    const Result<void> sent = co_await send(request);
    if (!sent) {
        co_return sent.error();
    }
    boost::beast::flat_buffer buffer(kBufferBytesMax);
    http::response_parser<http::string_body> parser;
    // Records come as base64, several to a page.
    parser.body_limit(2 * limits_.record_bytes_max);
    const auto [failure, count] =
        co_await http::async_read(socket_, buffer, parser, asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost("reading from", failure);
    }
    if (!parser.get().keep_alive()) {
        disconnect();
    }
    Answer answer;
    answer.status = parser.get().result_int();
    answer.body = std::move(parser.get().body());
    co_return answer;
}

asio::awaitable<Result<void>> EtcdClient::send(const EtcdRequest& request) {
    if (!socket_.is_open()) {
        const Result<void> connected = co_await connect();
        if (!connected) {
            co_return connected.error();
        }
    }
    http::request<http::string_body> message(http::verb::post, request.path, 11, request.body);
    message.set(http::field::host, peer());
    message.set(http::field::content_type, "application/json");
    // An etcd that has lost the others then says so instead of being silent for ever.
    message.set("Grpc-Metadata-hasleader", "true");
    message.prepare_payload();
    const auto [failure, count] =
        co_await http::async_write(socket_, message, asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost("writing to", failure);
    }
    co_return kDone;
}

asio::awaitable<Result<void>> EtcdClient::connect() {
    const Endpoint& etcd = etcds_[current_];
    const NameLookup::Answer found =
        co_await lookup_.resolve(etcd.host, deadline_.deadline().value_or(now()));
    if (found.failure || is_timed_out_ || is_cancelled_) {
        co_return lost("resolving the host of", found.failure);
    }
    std::vector<tcp::endpoint> addresses;
    for (const asio::ip::address& one : found.addresses) {
        addresses.emplace_back(one, etcd.port);
    }
    auto [failure, address] =
        co_await asio::async_connect(socket_, addresses, asio::as_tuple(asio::use_awaitable));
    error_code ignored;
    if (!failure && socket_.local_endpoint(ignored) == address) {
        // A port that nobody listens on may be the one the kernel chose for us.
        failure = asio::error::connection_refused;
    }
    if (failure) {
        co_return lost("connecting to", failure);
    }
    // A watch is silent for hours, and a machine that lost its power is silent, too.
    const int fd = socket_.native_handle();
    const int seconds = 1;
    const int probes = 3;
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
    socket_.set_option(tcp::no_delay(true), ignored);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    co_return kDone;
}

// ----------------------------------------------------------------------------------------- streams

asio::awaitable<Result<void>> EtcdClient::open_stream(EtcdRequest request) {
    is_cancelled_ = false;
    Result<void> begun = Error{ErrorCode::ConnectionLost, "the stream was given up"};
    for (std::size_t tried = 0; tried < etcds_.size() && !begun && !is_cancelled_; ++tried) {
        disconnect();
        arm_deadline(now() + limits_.etcd_timeout);
        begun = co_await begin_stream(request);
        deadline_.set(std::nullopt);
        if (!begun) {
            try_next();
        }
    }
    co_return begun;
}

asio::awaitable<Result<void>> EtcdClient::begin_stream(const EtcdRequest& request) {
    const Result<void> sent = co_await send(request);
    if (!sent) {
        co_return sent.error();
    }
    stream_ = std::make_unique<Stream>();
    stream_->parser.body_limit(boost::none);
    const auto [failure, count] = co_await http::async_read_header(
        socket_, stream_->buffer, stream_->parser, asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return lost("reading from", failure);
    }
    if (stream_->parser.get().result_int() != kOk) {
        Answer answer;
        answer.status = stream_->parser.get().result_int();
        co_return not_done(answer);
    }
    co_return kDone;
}

asio::awaitable<Result<std::string>> EtcdClient::next_line(Milliseconds patience) {
    DDP_CHECK(stream_ != nullptr);
    Error problem{ErrorCode::ConnectionLost, "the stream was given up"};
    arm_deadline(now() + patience);
    while (!is_cancelled_) {
        std::string& text = stream_->parser.get().body();
        if (const std::size_t end = text.find('\n'); end != std::string::npos) {
            std::string line = text.substr(0, end);
            text.erase(0, end + 1);
            deadline_.set(std::nullopt);
            co_return line;
        }
        if (stream_->parser.is_done() || text.size() > kLineBytesMax) {
            problem = lost("reading the stream of", asio::error::eof);
            break;
        }
        const auto [failure, count] = co_await http::async_read_some(
            socket_, stream_->buffer, stream_->parser, asio::as_tuple(asio::use_awaitable));
        if (failure) {
            problem = lost("reading the stream of", failure);
            break;
        }
    }
    deadline_.set(std::nullopt);
    try_next();
    co_return problem;
}

// ----------------------------------------------------------------------------------------- helpers

void EtcdClient::arm_deadline(Instant at) {
    is_timed_out_ = false;
    deadline_.set(at);
}

/// Leaves the stream's memory alone: its coroutine may be in the middle of it.
void EtcdClient::disconnect() {
    error_code ignored;
    socket_.close(ignored);
}

void EtcdClient::try_next() {
    disconnect();
    current_ = (current_ + 1) % etcds_.size();
}

Error EtcdClient::lost(const std::string& doing, const error_code& why) const {
    if (is_timed_out_) {
        return Error{ErrorCode::TimedOut,
                     fmt::format("{} etcd at {} took too long", doing, peer())};
    }
    const ErrorCode code =
        why == asio::error::connection_refused ? ErrorCode::Unreachable : ErrorCode::ConnectionLost;
    return Error{code, fmt::format("{} etcd at {} failed: {}", doing, peer(), why.message())};
}

Error EtcdClient::not_done(const Answer& answer) const {
    const std::string said = read_error(answer.body).value_or("no reason");
    const bool is_full = said.find("space exceeded") != std::string::npos;
    return Error{
        is_final(answer.status) ? ErrorCode::Refused : ErrorCode::System,
        fmt::format("etcd at {} did not do it: {} (HTTP status {}){}", peer(), said, answer.status,
                    is_full ? "; give it a larger --quota-backend-bytes, or compact and defragment "
                              "it, then run: etcdctl alarm disarm"
                            : "")};
}

}  // namespace ddprun::rdzv
