#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/instant.hpp"
#include "rendezvous/transport/name_lookup.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::rdzv {

/// A connection to an HTTP server, in clear or inside TLS, for one request after the other. After
/// a failure the owner closes the connection. One coroutine at a time; one thread. Outlives its
/// coroutines.
class HttpConnection {
public:
    using Failure = boost::system::error_code;
    using Request = boost::beast::http::request<boost::beast::http::string_body>;
    using Answer = boost::beast::http::response<boost::beast::http::string_body>;
    using AnswerParser = boost::beast::http::response_parser<boost::beast::http::string_body>;

    /// An answer's header must fit into `buffer_bytes_max`. With `has_tls` the server must show a
    /// certificate for its name, of an authority that this machine trusts.
    HttpConnection(boost::asio::io_context& io, std::size_t buffer_bytes_max, bool has_tls = false);

    /// Every later step fails at `until` if it is still under way.
    void set_deadline(Instant until);
    [[nodiscard]] bool is_late() const { return std::chrono::steady_clock::now() >= until_; }

    [[nodiscard]] boost::asio::awaitable<Failure> connect(Endpoint server);

    /// Sends `request` and reads the header of the answer.
    [[nodiscard]] boost::asio::awaitable<Failure> ask(Request request, AnswerParser& answer);

    /// Reads the rest of the answer.
    [[nodiscard]] boost::asio::awaitable<Failure> read(AnswerParser& answer);

    /// Reads some more of the answer, as soon as there is more.
    [[nodiscard]] boost::asio::awaitable<Failure> read_some(AnswerParser& answer);

    /// The last step, for texts that end in the server's name.
    [[nodiscard]] const char* step() const { return step_; }

    [[nodiscard]] boost::asio::ip::tcp::socket& socket() { return stream_.socket(); }
    [[nodiscard]] bool is_open() const { return stream_.socket().is_open(); }
    void close();

    /// Closes the connection; the step under way fails.
    void cancel();

private:
    template <typename Operation>
    [[nodiscard]] boost::asio::awaitable<Failure> carry_out(Operation operation);

    NameLookup lookup_;
    boost::beast::tcp_stream stream_;
    std::optional<boost::asio::ssl::context> tls_context_;  ///< none: in clear
    /// on stream_, once connected
    std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
    boost::beast::flat_buffer buffer_;
    Instant until_{};
    const char* step_ = "";
};

}  // namespace ddprun::rdzv
