#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/os/deadline_timer.hpp"
#include "base/watch_limits.hpp"

namespace ddprun::agent {

/// Returns the address of NCCL's RAS in a process of this node, by NCCL_RAS_ADDR or its default;
/// none: RAS is at a name that has to be looked up, or off.
[[nodiscard]] std::optional<boost::asio::ip::tcp::endpoint> ras_endpoint(
    const std::optional<std::string>& nccl_ras_addr);

/// Asks NCCL's RAS (2.24 and later) how the job's communicators are. On the agent's thread;
/// outlives the run of the loop.
class RasClient {
public:
    /// All that it has sent; none: no answer, or not in time, or too much.
    using OnAnswer = std::function<void(std::optional<std::string> answer)>;

    RasClient(boost::asio::io_context& io, const WatchLimits& limits);

    /// One question at a time: an earlier one is given up, and not answered any more.
    void ask(const boost::asio::ip::tcp::endpoint& endpoint, OnAnswer on_answer);

    void cancel();

private:
    struct Question {
        explicit Question(boost::asio::io_context& io) : socket(io) {}
        boost::asio::ip::tcp::socket socket;
        std::string received{};
    };

    void send(const std::shared_ptr<Question>& question);
    void read(const std::shared_ptr<Question>& question);
    void finish(const std::shared_ptr<Question>& question, std::optional<std::string> answer);

    boost::asio::io_context& io_;
    WatchLimits limits_;
    std::string words_;  ///< that are sent
    OnAnswer on_answer_;
    std::shared_ptr<Question> question_;  ///< null: none is open
    DeadlineTimer deadline_;
};

}  // namespace ddprun::agent
