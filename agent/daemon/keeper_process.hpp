#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/process/containment.hpp"
#include "agent/process/saved_process_state.hpp"
#include "base/instant.hpp"
#include "base/os/child.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

struct KeeperProgram {
    std::string path;
    bool may_stall = false;  ///< its file is on a file system that may: the agent does not wait
};

/// The keeper as a process: started, watched, killed and reaped. One at a time. Owned and called by
/// the agent's thread, which lives as long as the agent: with a PID namespace the keeper dies with
/// it.
class KeeperProcess {
public:
    struct Events {
        /// It has ended and was reaped.
        std::function<void()> on_ended;
        /// It was killed, and `rest` is still there after the time allowed. Forgotten by now.
        std::function<void(std::string rest)> on_stuck;
    };

    KeeperProcess(boost::asio::io_context& io, Milliseconds unkillable_after, Events events);

    /// Starts `program` for `containment`, the agent's, with `socket` as its end of the socketpair.
    /// Failure names the program, or the containment that cannot be had, and the reason; then there
    /// is none.
    [[nodiscard]] Result<void> start(const KeeperProgram& program, const SavedProcessState& state,
                                     const Containment& containment, const UniqueFd& socket);

    /// 0: there is none.
    [[nodiscard]] int pid() const { return child_.pid(); }

    /// SIGKILL, where there is one; on_ended or on_stuck follows.
    void kill();

private:
    Milliseconds unkillable_after_;
    Events events_;
    boost::asio::steady_timer deadline_;
    Child child_;
};

}  // namespace ddprun::agent
