#pragma once

#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "agent/contract/notify_target.hpp"
#include "agent/notify/delivery.hpp"
#include "base/limits.hpp"
#include "rendezvous/transport/http_connection.hpp"

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
    [[nodiscard]] boost::asio::awaitable<void> deliver(std::string line);
    [[nodiscard]] boost::asio::awaitable<std::string> post(std::string line);

    boost::asio::io_context& io_;
    Limits limits_;
    NotifyUrl url_;
    OnEnd on_end_;
    rdzv::HttpConnection connection_;
    bool is_cancelled_ = false;
};

}  // namespace ddprun::agent
