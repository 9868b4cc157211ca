#pragma once

#include <csignal>
#include <functional>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/instant.hpp"
#include "base/os/child.hpp"
#include "base/os/start_program.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// One helper program at a time, as a child of this process that is no worker's. It is killed with
/// all of its group when its time, if it has one, is up; it is killed, too, when the thread that
/// has started it ends. Owned and called by the agent's thread; outlives the run of `io`.
class TimedProgram {
public:
    struct Events {
        /// It was started.
        std::function<void(int pid)> on_child;
        /// How it has ended; none: its time was up.
        std::function<void(std::optional<siginfo_t> end)> on_end;
    };

    TimedProgram(boost::asio::io_context& io, Events events);

    /// Starts `spec`, which has a session of its own, in place of what runs; answered by one
    /// on_end, never at once.
    [[nodiscard]] Result<void> start(ProgramSpec spec, std::optional<Milliseconds> timeout);

    /// Kills what runs; there is no on_end any more.
    void cancel();

    /// True if one that was killed is still there: something in the kernel does not let it go.
    [[nodiscard]] bool is_stuck() const { return !child_ && unreaped_ > 0; }

private:
    boost::asio::io_context& io_;
    boost::asio::steady_timer deadline_;
    Events events_;
    std::shared_ptr<Child> child_;  ///< none: none runs
    int unreaped_ = 0;              ///< it, and those that were killed
};

}  // namespace ddprun::agent
