#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/tls_files.hpp"

namespace ddprun::launcher {

struct DaemonStarterOptions {
    std::string program;      ///< path of ddprun-rendezvous
    rdzv::Endpoint endpoint;  ///< numeric
    std::string secret_file;  ///< empty with is_insecure
    bool is_insecure = false;
    rdzv::TlsFiles tls;        ///< all of them, or none
    std::string state_folder;  ///< where the daemon keeps its runs
    std::string log_file;      ///< what the daemon says is appended here
};

/// Has a rendezvous daemon run at an endpoint that this machine owns: binds and listens there, and
/// hands the socket to a daemon of its own session, outside any worker's containment. Whoever
/// listens first serves; everybody else gets EADDRINUSE and connects. The daemon outlives this
/// process if need be, and ends by itself after the last run. One thread, that of `io`.
class DaemonStarter {
public:
    DaemonStarter(boost::asio::io_context& io, DaemonStarterOptions options);
    ~DaemonStarter();
    DaemonStarter(const DaemonStarter&) = delete;
    DaemonStarter& operator=(const DaemonStarter&) = delete;

    /// Starts a daemon unless somebody listens there. Success: there is one. To be called before
    /// each attempt to connect, so that a daemon that died is replaced.
    [[nodiscard]] Result<void> claim();

    /// The daemon started last, if it still lives: a child of this process that no sweep may touch.
    [[nodiscard]] std::vector<int> living_pids() const;

    /// Calls `done` when the daemon that claim() started has ended, at once if there is none, or
    /// after `patience`: other jobs may use it.
    void wait_until_ended(Milliseconds patience, std::function<void()> done);

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
