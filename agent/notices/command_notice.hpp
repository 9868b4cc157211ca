#pragma once

#include <array>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/notices/notice_events.hpp"
#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/helper.hpp"

namespace ddprun::agent {

/// Runs a site's own command, which says by ending with 0, or by a line on its stdout with the
/// deadline, that this node must go. One that ends otherwise is started again after
/// Limits::drain_command_every. Owned and called by the agent's thread; outlives the run of `io`.
class CommandNotice final : public DrainNotice {
public:
    CommandNotice(boost::asio::io_context& io, const Limits& limits, std::string command,
                  NoticeEvents events);

    void start() override;
    void stop() override;

private:
    [[nodiscard]] Result<void> begin();
    void read_on();
    void take_lines();
    void has_ended(const siginfo_t& end);
    void say_once(const std::string& what);
    void start_again_later();

    Limits limits_;
    std::string command_;
    NoticeEvents events_;
    Helper program_;
    boost::asio::posix::stream_descriptor output_;
    DeadlineTimer pause_;
    std::array<char, 4096> buffer_{};
    std::string text_;  ///< an unfinished line of it
    std::string said_;
};

}  // namespace ddprun::agent
