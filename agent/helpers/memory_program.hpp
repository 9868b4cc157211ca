#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/contract/memory_options.hpp"
#include "base/os/helper.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// Has ddprun-memory keep the checkpoints of this node's workers in memory: a process of its own,
/// so that copies of gigabytes hold up no beat. It is started before the first workers, and lives
/// as long as this object. If it cannot be started or dies, that costs a line and the checkpoints
/// in memory; it is started anew for the next generation. Owned and called by the agent's thread.
class MemoryProgram {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
    };

    /// `has_partners`: each node's checkpoint is copied to another node.
    MemoryProgram(boost::asio::io_context& io, MemoryOptions options, JobId job, bool has_partners,
                  Events events);

    /// Workers are about to start on this node, whose address for other nodes is `address`.
    /// Returns the name of the socket for them (DDPRUN_MEMORY_CHECKPOINTS); empty: the program does
    /// not run.
    [[nodiscard]] std::string begin_generation(const std::string& address);

    /// Kills it; the checkpoints in memory go.
    void stop();

private:
    [[nodiscard]] Result<void> start(const std::string& address);

    MemoryOptions options_;
    JobId job_;
    bool has_partners_;
    Events events_;
    Helper program_;
    UniqueFd settings_;    ///< the pipe to the program, whose end it watches; not open: none runs
    std::string address_;  ///< of the socket for workers; empty: the program does not run
};

}  // namespace ddprun::agent
