#include "rendezvous/transport/http_connection.hpp"

#include <tuple>
#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>

namespace ddprun::rdzv {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

HttpConnection::HttpConnection(asio::io_context& io, std::size_t buffer_bytes_max, bool has_tls)
    : lookup_(io), stream_(io), buffer_(buffer_bytes_max) {
    if (has_tls) {
        tls_context_.emplace(asio::ssl::context::tls_client);
        Failure ignored;  // no authorities: no certificate is taken
        tls_context_->set_default_verify_paths(ignored);
        tls_context_->set_verify_mode(asio::ssl::verify_peer);
    }
}

void HttpConnection::set_deadline(Instant until) {
    until_ = until;
    stream_.expires_at(until);
}

void HttpConnection::close() {
    Failure ignored;
    socket().close(ignored);
}

void HttpConnection::cancel() {
    lookup_.cancel();
    close();
}

asio::awaitable<HttpConnection::Failure> HttpConnection::connect(Endpoint server) {
    step_ = "resolving the host of";
    const NameLookup::Answer found = co_await lookup_.resolve(server.host, until_);
    if (found.failure) {
        co_return found.failure;
    }
    std::vector<tcp::endpoint> addresses;
    for (const asio::ip::address& one : found.addresses) {
        addresses.emplace_back(one, server.port);
    }
    step_ = "connecting to";
    buffer_.clear();
    auto [failure, address] =
        co_await stream_.async_connect(addresses, asio::as_tuple(asio::use_awaitable));
    Failure ignored;
    if (!failure && socket().local_endpoint(ignored) == address) {
        // A port without a listener may be the one the kernel chose for us.
        failure = asio::error::connection_refused;
    }
    if (failure || !tls_context_) {
        co_return failure;
    }
    tls_.emplace(stream_, *tls_context_);
    // A server that has several names shows the certificate of this one.
    ::SSL_ctrl(tls_->native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
               server.host.data());
    tls_->set_verify_callback(asio::ssl::host_name_verification(server.host));
    const auto [untrusted] = co_await tls_->async_handshake(asio::ssl::stream_base::client,
                                                            asio::as_tuple(asio::use_awaitable));
    co_return untrusted;
}

asio::awaitable<HttpConnection::Failure> HttpConnection::ask(Request request,
                                                             AnswerParser& answer) {
    step_ = "writing to";
    const Failure unsent = co_await carry_out([&request](auto& stream) {
        return http::async_write(stream, request, asio::as_tuple(asio::use_awaitable));
    });
    if (unsent) {
        co_return unsent;
    }
    step_ = "reading from";
    co_return co_await carry_out([this, &answer](auto& stream) {
        return http::async_read_header(stream, buffer_, answer,
                                       asio::as_tuple(asio::use_awaitable));
    });
}

asio::awaitable<HttpConnection::Failure> HttpConnection::read(AnswerParser& answer) {
    return carry_out([this, &answer](auto& stream) {
        return http::async_read(stream, buffer_, answer, asio::as_tuple(asio::use_awaitable));
    });
}

asio::awaitable<HttpConnection::Failure> HttpConnection::read_some(AnswerParser& answer) {
    return carry_out([this, &answer](auto& stream) {
        return http::async_read_some(stream, buffer_, answer, asio::as_tuple(asio::use_awaitable));
    });
}

template <typename Operation>
asio::awaitable<HttpConnection::Failure> HttpConnection::carry_out(Operation operation) {
    Failure failure;
    if (tls_) {
        std::tie(failure, std::ignore) = co_await operation(*tls_);
    } else {
        std::tie(failure, std::ignore) = co_await operation(stream_);
    }
    co_return failure;
}

}  // namespace ddprun::rdzv
