#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>

#include "agent/keeper/worker_spawner.hpp"
#include "agent/process/containment.hpp"
#include "agent/process/frame_channel.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/saved_process_state.hpp"
#include "agent/process/sweep.hpp"
#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

/// The parent of all workers of one agent. Holds at most one generation: its workers and whatever
/// they left behind. Lives until the agent closes the socket or dies; then it kills what it holds
/// and stops the io_context. Owned by the keeper's main, one thread, outlives the loop's run.
class Keeper {
public:
    /// `agent` is this end of the socketpair. Starts to listen.
    Keeper(boost::asio::io_context& io, UniqueFd agent, const SavedProcessState& saved_state,
           Containment containment, Milliseconds unkillable_after);
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;

    /// Says that the agent could not be understood, or that something could not be killed.
    [[nodiscard]] bool has_failed() const { return has_failed_; }

private:
    struct Worker {
        Generation generation;  ///< `held_`, or that of standbys
        LocalRank local_rank;
        int outer_pid = 0;  ///< by which the agent knows it
        std::optional<int> exec_errno;
        /// Open until it is known whether exec succeeded.
        std::unique_ptr<boost::asio::posix::stream_descriptor> exec_status;
        /// Not there on kernels without pidfd, or without memory: then SIGCHLD alone reports it.
        std::unique_ptr<boost::asio::posix::stream_descriptor> pidfd;
    };
    using Workers = std::map<int, Worker>;  ///< by pid

    void on_frame(std::string_view body);
    void on_agent_gone(const std::string& why);
    void handle(KeeperSpawn spawn);
    void handle(const KeeperSignal& signal);
    void handle(const KeeperForward& forward);
    void handle(const KeeperEmpty& empty);
    void handle(KeeperTerminal terminal);
    void handle(const KeeperAdopt& adopt);
    [[nodiscard]] std::string hold_page(Generation generation, UniqueFd page);
    void restore_terminal() const;
    void watch(int pid, Worker& worker, UniqueFd exec_status);
    void wait_for_exec(int pid, Worker& worker);
    void read_exec_status(int pid, Worker& worker);
    void reap_all();
    void reap_worker(Workers::iterator worker);
    void wait_for_orphans();
    void on_empty();
    void on_stuck(const std::string& rest);
    void send(const KeeperEvent& event);
    void refuse(const KeeperSpawn& spawn, int error);

    boost::asio::io_context& io_;
    Containment containment_;
    WorkerSpawner spawner_;
    Sweep sweep_;
    boost::asio::signal_set child_signals_;
    std::shared_ptr<FrameChannel> agent_;
    Milliseconds unkillable_after_;
    Generation held_;  ///< 0: nothing lives
    Workers workers_;  ///< of `held_`, and standbys; not reaped
    UniqueFd page_;    ///< of `held_`, for workers to open, as are the next
    std::map<LocalRank, UniqueFd> imports_;
    std::optional<Generation> emptying_;  ///< to be answered
    KeeperTerminal terminal_;             ///< ddprun's own, as it is to be left; empty: as it is
    bool is_ending_ = false;
    bool has_failed_ = false;
    bool has_said_no_pidfd_ = false;
};

}  // namespace ddprun::agent
