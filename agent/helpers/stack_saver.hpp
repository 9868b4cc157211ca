#pragma once

#include <csignal>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/contract/effects.hpp"
#include "base/limits.hpp"
#include "base/os/helper.hpp"

namespace ddprun::agent {

/// Has the stacks of this node's workers saved by ddprun-stacks, a process of its own: what it asks
/// the kernel may never be answered. It is killed when its time is up. Owned and called by the
/// agent's thread.
class StackSaver {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
        std::function<void(Generation)> on_done;
    };

    /// `program`: what the workers execute.
    StackSaver(boost::asio::io_context& io, const Limits& limits, std::string program,
               Events events);

    /// `pids`: of the workers that have been started. Answered by one on_done, perhaps at once.
    void save(const SaveStacks& order, const std::map<LocalRank, int>& pids);

    /// The generation is to be emptied: nothing more is saved of it.
    void cancel() { program_.cancel(); }

private:
    void say_how_it_ended(const std::optional<siginfo_t>& end);
    [[nodiscard]] Result<void> start(const SaveStacks& order, const std::map<LocalRank, int>& pids);

    Helper program_;
    Limits limits_;
    std::string worker_program_;
    Events events_;
    Generation generation_;
};

}  // namespace ddprun::agent
