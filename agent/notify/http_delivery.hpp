#pragma once

#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include "agent/contract/notify_target.hpp"
#include "agent/notify/delivery.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "rendezvous/transport/name_lookup.hpp"

namespace ddprun::agent {

/// Posts each notice to a URL, over a connection of its own; it is taken if the answer's status is
/// one of 200 to 299. With https the server must show a certificate for its name, of an authority
/// that this machine trusts.
class HttpDelivery final : public Delivery {
public:
    HttpDelivery(boost::asio::io_context& io, const Limits& limits, NotifyUrl url, OnEnd on_end);

    void begin(const std::string& line) override;
    void cancel() override;

private:
    using Stream = boost::asio::ssl::stream<boost::beast::tcp_stream>;

    [[nodiscard]] boost::asio::awaitable<void> deliver(std::string line);
    [[nodiscard]] boost::asio::awaitable<std::string> post(std::string line);
    [[nodiscard]] boost::asio::awaitable<std::string> connect();
    template <typename Through>
    [[nodiscard]] boost::asio::awaitable<std::string> exchange(Through& stream, std::string line);
    void close();

    boost::asio::io_context& io_;
    Limits limits_;
    NotifyUrl url_;
    OnEnd on_end_;
    rdzv::NameLookup lookup_;
    boost::asio::ssl::context context_;
    std::optional<Stream> stream_;  ///< without TLS only its inner one is used
    Instant until_{};               ///< of the attempt under way
    bool is_cancelled_ = false;
};

}  // namespace ddprun::agent
