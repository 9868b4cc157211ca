#pragma once

#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/notices/notice_events.hpp"
#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/transport/http_connection.hpp"

namespace ddprun::agent {

/// Asks the metadata server of an EC2 instance (IMDSv2) every Limits::drain_ask_every whether the
/// instance will be taken away: it has no events. A repeated answer is told once; a failure to
/// answer is said once for each reason, and asking continues. Owned and called by the agent's
/// thread; outlives the run of `io`.
class AwsNotices final : public DrainNotice {
public:
    AwsNotices(boost::asio::io_context& io, const Limits& limits, rdzv::Endpoint server,
               NoticeEvents events);

    void start() override;
    void stop() override;

private:
    using Answer = rdzv::HttpConnection::Answer;

    [[nodiscard]] boost::asio::awaitable<void> watch();
    [[nodiscard]] boost::asio::awaitable<Result<void>> ask_all();
    [[nodiscard]] boost::asio::awaitable<Result<void>> renew_token();
    [[nodiscard]] boost::asio::awaitable<Result<std::string>> read(std::string path);
    [[nodiscard]] boost::asio::awaitable<Result<Answer>> exchange(boost::beast::http::verb verb,
                                                                  std::string path);
    [[nodiscard]] Result<void> take_spot(const std::string& body);
    void take_rebalance(const std::string& body);
    void say_once(const Result<void>& asked);
    [[nodiscard]] Error problem(const std::string& what) const;

    boost::asio::io_context& io_;
    Limits limits_;
    rdzv::Endpoint server_;
    NoticeEvents events_;
    rdzv::HttpConnection connection_;
    boost::asio::steady_timer pause_;
    std::string token_;
    Instant token_until_{};
    std::string spot_;       ///< as it was told last
    std::string rebalance_;  ///< the same
    std::string said_;
    bool is_stopped_ = false;
};

}  // namespace ddprun::agent
