#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/os/helper.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// Runs the site's own check of this machine (--preflight-command) by the shell, as a child of this
/// process with its environment, stdout and stderr. It is killed with its process group when its
/// time is up, or when this process dies; what has left that group stays. Owned and called by the
/// agent's thread.
class PreflightCommand {
public:
    struct Events {
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
        /// `why` this machine is not fit; empty: it is. Never called by run() itself.
        std::function<void(std::string why)> on_done;
    };

    PreflightCommand(boost::asio::io_context& io, std::string command, Milliseconds timeout,
                     Events events);

    /// Answered by one on_done.
    void run();

    /// Kills what runs; there is no on_done any more.
    void cancel();

private:
    [[nodiscard]] Result<void> start();
    void release();

    boost::asio::io_context& io_;
    Helper program_;
    UniqueFd lifeline_;  ///< closed without a word: this process has died, and so does its group
    std::string command_;
    Milliseconds timeout_;
    Events events_;
};

}  // namespace ddprun::agent
