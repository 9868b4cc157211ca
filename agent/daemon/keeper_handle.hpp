#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/daemon/cpu_time.hpp"
#include "agent/process/children.hpp"
#include "agent/process/containment.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/saved_process_state.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

struct KeeperOptions {
    std::string path;                             ///< of the ddprun-keeper program
    std::optional<ContainmentLevel> containment;  ///< no other will do; none: the highest there is
    Limits limits;
    SavedProcessState saved_state;
    std::string proc = kProc;  ///< where CPU time is read; tests put another folder in its place
};

/// The agent's end of its keeper: starts it, talks to it, and when it dies sweeps what it left
/// behind and starts another. Makes this process a child subreaper where it can. Owned and called
/// by the thread of the io_context; events come on that thread and never from inside a call of the
/// owner's.
///
/// Children that this process has when start() is called, and those given to exclude(), are not the
/// keeper's and are never swept.
class KeeperHandle {
    class Impl;

public:
    struct Events {
        /// The program runs: exec has succeeded.
        std::function<void(Generation, LocalRank, int pid)> on_started;
        /// Comes after on_started, or alone with exec_errno.
        std::function<void(Generation, LocalRank, WorkerEnd)> on_exited;
        /// Answers empty_generation(), after on_exited of every worker.
        std::function<void(Generation)> on_emptied;
        /// Answers empty_generation(), or comes when the keeper has died: this could not be killed.
        /// In that case nothing else is answered until it is gone, which on_lost tells.
        std::function<void(Generation, std::string what)> on_not_emptied;
        /// The keeper died: its workers are dead and swept, without on_exited of their own: nothing
        /// is left of them, by the kernel's word. Another keeper runs, or is started by the next
        /// start_worker(). An empty_generation() that was not answered is answered by that.
        std::function<void()> on_lost;
    };

    /// Starts the keeper. Failure names the program, or the containment that cannot be had, and the
    /// reason; nothing is left running.
    [[nodiscard]] static Result<std::unique_ptr<KeeperHandle>> start(boost::asio::io_context& io,
                                                                     KeeperOptions options,
                                                                     Events events);
    /// For start(); nobody else has an Impl.
    explicit KeeperHandle(std::shared_ptr<Impl> impl);
    /// As stop(), without waiting.
    ~KeeperHandle();
    KeeperHandle(const KeeperHandle&) = delete;
    KeeperHandle& operator=(const KeeperHandle&) = delete;

    /// Starts a worker with `out` and `err` as its stdout and stderr. Always answered: on_started
    /// or on_exited, or on_lost. Calls of one loop turn travel together. It may run on `cpus`
    /// only, or where this process may if that is empty. It finds `page` under a path of its
    /// DDPRUN_PAGE; not open: that variable is not touched.
    void start_worker(Generation generation, LocalRank local_rank,
                      const std::vector<std::string>& command,
                      const std::vector<std::pair<std::string, std::string>>& environment,
                      UniqueFd out, UniqueFd err, const std::vector<int>& cpus = {},
                      UniqueFd page = {});

    /// To the process groups of these workers of the generation, as far as they still run.
    void signal_workers(Generation generation, std::vector<LocalRank> local_ranks, int signal);
    void forward_signal(Generation generation, int signal);

    /// SIGKILL to everything left of the generation, descendants too, until nothing is.
    void empty_generation(Generation generation);

    /// `pid` is a child of this process that no sweep may touch.
    void exclude(int pid);

    /// In force, for status and reports.
    [[nodiscard]] ContainmentLevel containment() const;

    [[nodiscard]] int keeper_pid() const;

    /// Of the workers and all that they have started. Asks nobody here: reading it is what may take
    /// long.
    [[nodiscard]] CpuTime cpu_time() const;

    /// Closes the socket: the keeper kills what it still holds and ends by itself. No event comes
    /// after this call; `done` is called when it has been reaped.
    void stop(std::function<void()> done = {});

private:
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::agent
