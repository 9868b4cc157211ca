#pragma once

#include <array>
#include <cstddef>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/notices/notice_events.hpp"
#include "base/limits.hpp"

namespace ddprun::agent {

/// Waits for a file to be there, which means that this node must go; its first line may tell the
/// deadline. The kernel tells of it, or, where others may write it unseen (a network's file system,
/// a folder that is not there yet), it is looked at every Limits::drain_look_every, which is said.
/// Owned and called by the agent's thread; outlives the run of `io`.
class FileNotice final : public DrainNotice {
public:
    FileNotice(boost::asio::io_context& io, const Limits& limits, std::string path,
               NoticeEvents events);

    void start() override;
    void stop() override;

private:
    [[nodiscard]] std::string begin_to_watch();
    void look();
    void await_events();
    void take_events(std::size_t count);
    void look_again_later();
    void watch_by_looking(const std::string& why);

    Limits limits_;
    std::string path_;
    std::string folder_;
    std::string name_;
    NoticeEvents events_;
    boost::asio::posix::stream_descriptor watch_;
    boost::asio::steady_timer pause_;
    alignas(8) std::array<char, 4096> buffer_{};
};

}  // namespace ddprun::agent
