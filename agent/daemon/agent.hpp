#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/core/supervisor.hpp"
#include "agent/daemon/keeper_handle.hpp"
#include "agent/output/worker_output.hpp"
#include "rendezvous/client/link.hpp"

namespace ddprun::agent {

struct AgentOptions {
    SupervisorOptions supervisor;
    OutputOptions output;
    KeeperOptions keeper;
    std::uint16_t store_port = 0;         ///< fixed port of all stores; 0: the kernel chooses each
    std::vector<int> signals_to_handle;   ///< each asks to drain
    std::vector<int> signals_to_forward;  ///< each is passed on to the workers
    std::string preflight_command;        ///< for the shell; empty: none
    Milliseconds preflight_timeout{};     ///< then it is killed
    std::string program;                  ///< as the user named it, for the report
    std::string error_file;               ///< to be written if the job fails, torchrun's format
};

/// The IO around one Supervisor: feeds it what the link, the keeper, the output thread, the store
/// and signals say, and carries out its effects. Lives on the one thread of `io`; nothing here
/// blocks.
class Agent {
public:
    Agent(boost::asio::io_context& io, AgentOptions options, std::unique_ptr<rdzv::Link> link);

    /// Returns when the last line of output is written; the loop must not run any more.
    ~Agent();
    Agent(const Agent&) = delete;
    Agent& operator=(const Agent&) = delete;

    /// Starts keeper and link. `on_exit` is called once, when no worker is left and the rendezvous
    /// was told. Fails, having done nothing, if there can be no keeper.
    [[nodiscard]] Result<void> start(std::function<void(int exit_code)> on_exit);

    /// `pid` is a child of this process that is no worker's descendant; after start().
    void exclude_from_sweeps(int pid);

    /// One line of ddprun's own, in order with the workers' output.
    void say(const std::string& line);

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::agent
