#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include "base/instant.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/helper.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// Asks NVIDIA's driver through ddprun-gpu-use: a process of its own, for a driver may never
/// answer, and its library is larger than the agent. It is started with the first question and
/// stays, for the library takes long to start. One that does not answer in time is killed; another
/// is started for the next question, unless that one is still there. Owned and called by the
/// agent's thread.
class GpuHelper {
public:
    /// One line; none: there is no answer, or not in time.
    using Answer = std::function<void(std::optional<std::string> line)>;

    /// `on_child` is told of each child of this process that is no worker's.
    GpuHelper(boost::asio::io_context& io, std::function<void(int pid)> on_child);

    /// Answered once, in the order of asking, perhaps at once.
    void ask(const std::string& question, Milliseconds timeout, Answer on_answer);

    /// Kills it; what was asked is not answered any more.
    void stop();

private:
    using Socket = boost::asio::local::stream_protocol::socket;

    struct Connection {
        Socket socket;
        std::string received{};
    };
    struct Question {
        Instant until;
        Answer on_answer;
    };

    [[nodiscard]] Result<void> start();
    [[nodiscard]] bool send(const std::string& line);
    void set_deadline();
    void read();
    void answer_first(std::string line);
    /// Nothing that was asked is answered.
    void fail();
    [[nodiscard]] std::deque<Question> give_up();

    boost::asio::io_context& io_;
    Helper program_;
    std::shared_ptr<Connection> connection_;  ///< none: it does not run
    std::deque<Question> questions_;          ///< bounded: one for each that asks
    DeadlineTimer deadline_;                  ///< the first of theirs
};

}  // namespace ddprun::agent
