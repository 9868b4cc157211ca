#pragma once

#include <functional>
#include <map>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/process/containment.hpp"
#include "base/instant.hpp"

namespace ddprun::agent {

/// Empties a containment: kills, and again whenever a child of this process has died or the cgroup
/// reports a change, until the kernel says that no process is left. Nothing is polled and nothing
/// sleeps: every process that a dying one leaves behind has become our child before that death is
/// announced to us. One thread. Outlives the run of `io`.
class Sweep {
public:
    struct Events {
        /// Reap every dead child that is of the containment.
        std::function<void()> reap;
        std::function<void()> on_empty;
        /// `rest` is still there after the time allowed. The sweep goes on; on_empty may follow.
        std::function<void(std::string rest)> on_stuck;
    };

    /// `containment` outlives it.
    Sweep(boost::asio::io_context& io, Containment& containment, Events events);
    ~Sweep();
    Sweep(const Sweep&) = delete;
    Sweep& operator=(const Sweep&) = delete;

    /// The sweep that runs also waits until `pid` has ended, which is no child of this process and
    /// is killed by another one; called before begin(). A number that no process has, or a kernel
    /// without pidfd, or without memory to watch one: it does not.
    void await_other(int pid);

    /// Starts, or continues with the first deadline when it runs already; if that has passed
    /// on_stuck comes again, at once. May call any event before it returns.
    void begin(Milliseconds allowed);

    /// Forgets the deadline; no event comes any more.
    void cancel();

    /// To be called after SIGCHLD, which the caller must have caught since before begin().
    void on_child_died();

    [[nodiscard]] bool is_running() const { return is_running_; }

private:
    void step();
    void wait_for_other(int pid);
    [[nodiscard]] std::string describe_rest() const;
    void wait_for_cgroup();

    Containment& containment_;
    Events events_;
    boost::asio::io_context& io_;
    boost::asio::steady_timer deadline_;
    /// By number: those that await_other() was told of and that live.
    std::map<int, boost::asio::posix::stream_descriptor> others_;
    /// Open where there is a cgroup, whose descriptor it is.
    boost::asio::posix::stream_descriptor cgroup_events_;
    bool is_running_ = false;
    bool is_stuck_ = false;  ///< the deadline has passed
};

}  // namespace ddprun::agent
