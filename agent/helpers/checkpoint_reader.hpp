#pragma once

#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/os/deadline_timer.hpp"
#include "base/os/helper.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// Has the newest checkpoint read ahead by ddprun-readahead, a process of its own: a file system
/// may never answer. The agent neither waits for it nor reports how it went. Owned and called by
/// the agent's thread.
class CheckpointReader {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
    };

    CheckpointReader(boost::asio::io_context& io, Events events);

    /// The workers' end has begun. Reads within read_ahead_after. `places`: paths, as they have
    /// told them, few; without any those that earlier workers have told.
    void read_soon(std::vector<std::string> places);

    /// The next workers have been started: what read_soon() wanted is begun now.
    void read_now();

    /// Kills what runs, and begins nothing that is still to come.
    void cancel();

private:
    void begin();
    [[nodiscard]] Result<void> start();
    void say_failure(const std::string& why);

    Helper program_;
    DeadlineTimer timer_;
    Events events_;
    std::vector<std::string> places_;
    bool is_wanted_ = false;
    bool is_reading_ = false;
    bool has_failed_ = false;  ///< that was said
};

}  // namespace ddprun::agent
