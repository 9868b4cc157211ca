#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/notices/notice_events.hpp"
#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/file_look.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

/// Waits for a file to appear, which means that this node must go; its first line may give the
/// deadline. The kernel reports it. If others may write it unseen (a network's file system, a
/// folder not made yet), it is checked every Limits::drain_look_every instead, and a line says so.
/// A file system that does not answer as long is said, and holds up nothing else. Owned and called
/// by the agent's thread; outlives the run of `io`.
class FileNotice final : public DrainNotice {
public:
    FileNotice(boost::asio::io_context& io, const Limits& limits, std::string path,
               NoticeEvents events);

    void start() override;
    void stop() override;

private:
    /// The file, at some moment.
    struct Seen {
        bool is_there = false;
        std::string line;  ///< its first one
    };
    struct Begun {
        UniqueFd watch;   ///< inotify; not open: nothing will be told
        std::string why;  ///< there is no watch
        Seen seen;        ///< it may have been there before anybody watched
    };

    [[nodiscard]] static Begun begin_to_watch(const std::string& path, std::size_t bytes_max);
    [[nodiscard]] static Seen see(const std::string& path, std::size_t bytes_max);
    void has_begun(std::optional<Begun> begun);
    void look();
    void take(std::optional<Seen> seen);
    void await_answer();
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
    DeadlineTimer pause_;
    boost::asio::steady_timer patience_;  ///< with the look that has no answer yet
    FileLook look_;
    bool is_look_due_ = false;  ///< something has happened since that one began
    bool is_stopped_ = false;
    alignas(8) std::array<char, 4096> buffer_{};
};

}  // namespace ddprun::agent
