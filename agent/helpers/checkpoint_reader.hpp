#pragma once

#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/process/timed_program.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// Has the newest checkpoint read ahead by ddprun-readahead, a process of its own: a file system
/// may never answer. Nobody waits for it, and nobody is told how it went. Owned and called by the
/// agent's thread.
class CheckpointReader {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
    };

    CheckpointReader(boost::asio::io_context& io, Events events);

    /// In place of what is still being read. `places`: paths, as workers have told them, few.
    /// Nothing happens without any, or while an earlier process hangs in the kernel.
    void read(const std::vector<std::string>& places);

    /// Kills what runs.
    void cancel() { program_.cancel(); }

private:
    [[nodiscard]] Result<void> start(const std::vector<std::string>& places);

    TimedProgram program_;
    Events events_;
    bool has_failed_ = false;  ///< that was said
};

}  // namespace ddprun::agent
