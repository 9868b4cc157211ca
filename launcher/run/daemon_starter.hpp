#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/child.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/result.hpp"
#include "launcher/run/daemon_starts.hpp"
#include "rendezvous/transport/listener.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/tls_files.hpp"

namespace ddprun::launcher {

struct DaemonStarterOptions {
    std::string program;      ///< path of ddprun-rendezvous
    rdzv::Endpoint endpoint;  ///< numeric
    std::string secret_file;  ///< empty with is_insecure
    bool is_insecure = false;
    std::string operator_secret_file;  ///< empty: it takes no orders
    rdzv::TlsFiles tls;                ///< all of them, or none
    std::string state_folder;          ///< where the daemon keeps its runs
    std::string log_file;              ///< what the daemon says is appended here
    Limits limits;
};

/// Has a rendezvous daemon run at an endpoint that this machine owns: binds and listens there, and
/// hands the socket to a daemon of its own session, outside any worker's containment. The process
/// that listens first serves; every other one gets EADDRINUSE and connects. The daemon outlives
/// this process if need be, and ends by itself after the last run. One thread, that of `io`; no
/// handler of `io` runs after the starter is gone.
class DaemonStarter {
public:
    DaemonStarter(boost::asio::io_context& io, DaemonStarterOptions options);
    DaemonStarter(const DaemonStarter&) = delete;
    DaemonStarter& operator=(const DaemonStarter&) = delete;

    /// Starts a daemon unless a socket listens there. To be called before each attempt to connect,
    /// so that a daemon that died is replaced. Failure: none could be started. The one that says
    /// that it is given up, because none of Limits::daemon_starts_max in a row has listened, comes
    /// once; claim() does nothing then.
    [[nodiscard]] Result<void> claim();

    /// The daemon started last, if it still lives: a child of this process that no sweep may touch.
    [[nodiscard]] std::vector<int> living_pids() const;

    /// Calls `done` when the daemon that claim() started has ended, at once if there is none, or
    /// after `patience`: other jobs may use it.
    void wait_until_ended(Milliseconds patience, std::function<void()> done);

private:
    [[nodiscard]] Result<void> start(const rdzv::Listener& listener);
    void ended(const siginfo_t& end);
    void finish();

    const DaemonStarterOptions options_;
    boost::asio::io_context& io_;
    DaemonStarts starts_;
    Child daemon_;
    off_t log_begin_ = 0;  ///< of what that daemon says
    DeadlineTimer patience_;
    std::function<void()> done_;
    std::string given_up_;  ///< why, until it is said
};

}  // namespace ddprun::launcher
