#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "agent/daemon/cpu_time.hpp"
#include "agent/daemon/keeper_process.hpp"
#include "agent/process/children.hpp"
#include "agent/process/containment.hpp"
#include "agent/process/frame_channel.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/saved_process_state.hpp"
#include "agent/process/sweep.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

struct KeeperOptions {
    KeeperProgram program;
    std::optional<ContainmentLevel> containment;  ///< no other will do; none: the highest there is
    Limits limits;
    SavedProcessState saved_state;
    std::string proc = kProc;  ///< where CPU time is read; tests put another folder in its place
};

/// The agent's end of its keeper: starts it, talks to it, and when it dies sweeps what it left
/// behind and starts another. Makes this process a child subreaper where it can. Owned and called
/// by the thread of `io`, whose run it outlives: no handler runs after it is gone. Events come on
/// that thread and never from inside a call of the owner's, and the owner does not destroy it in
/// one.
///
/// Children that this process has when start() is called, and those given to exclude(), are not the
/// keeper's and are never swept. Every other child of this process is an orphan that it has adopted
/// as a subreaper, from a helper that has ended: it is reaped when it has ended, too.
class KeeperHandle {
public:
    /// `from` is the handle that calls: its owner may have several with the same events.
    struct Events {
        /// The program runs: exec has succeeded.
        std::function<void(Generation, LocalRank, int pid)> on_started;
        /// Comes after on_started, or alone with exec_errno.
        std::function<void(const KeeperHandle& from, Generation, LocalRank, WorkerEnd)> on_exited;
        /// Answers empty_generation(), after on_exited of every worker.
        std::function<void(Generation)> on_emptied;
        /// Answers empty_generation(), or comes when the keeper has died: this could not be killed.
        /// In that case nothing else is answered until it is gone, which on_lost reports.
        std::function<void(const KeeperHandle& from, Generation, std::string what)> on_not_emptied;
        /// The keeper died: its workers are dead and swept, without on_exited of their own: nothing
        /// is left of them, by the kernel's word. Another keeper runs, or is started by the next
        /// start_worker(). An empty_generation() that was not answered is answered by that.
        std::function<void(const KeeperHandle& from)> on_lost;
        /// The standby of this slot is a worker now, which is to find its page at that path; empty:
        /// it has none. Not for one that has died: on_exited has reported or reports that.
        std::function<void(Generation, LocalRank, int pid, std::string page)> on_adopted = {};
        /// Another keeper was started in the place of one that was lost. Comes at once, from
        /// inside start_worker() and start_standby() too.
        std::function<void(const KeeperHandle& from)> on_relaunched = {};
    };

    /// Starts the keeper. Failure names the program, or the containment that cannot be had, and the
    /// reason; nothing is left running.
    [[nodiscard]] static Result<std::unique_ptr<KeeperHandle>> start(boost::asio::io_context& io,
                                                                     KeeperOptions options,
                                                                     Events events);
    /// For start(), which makes the cgroup and launches the keeper.
    KeeperHandle(boost::asio::io_context& io, KeeperOptions options, Events events,
                 std::optional<Cgroup> cgroup, const std::vector<int>& children_before);
    /// As stop(), without waiting.
    ~KeeperHandle();
    KeeperHandle(const KeeperHandle&) = delete;
    KeeperHandle& operator=(const KeeperHandle&) = delete;

    /// Starts a worker with `out` and `err` as its stdout and stderr. Always answered: on_started
    /// or on_exited, or on_lost. Calls of one loop turn travel together. It may run on `cpus`
    /// only, or where this process may if that is empty. It finds `page` under a path of its
    /// DDPRUN_PAGE; not open: that variable is not touched. `imports`, a pipe, likewise in
    /// DDPRUN_IMPORTS. With WorkerStdin::Terminal `out` is a terminal that controls no session yet.
    void start_worker(Generation generation, LocalRank local_rank,
                      const std::vector<std::string>& command, const Environment& environment,
                      UniqueFd out, UniqueFd err, const std::vector<int>& cpus = {},
                      UniqueFd page = {}, WorkerStdin stdin_from = WorkerStdin::Inherited,
                      UniqueFd imports = {});

    /// Starts a standby of this slot, as a worker of kStandbyGeneration; `socket` is its end of the
    /// way to it, whose number it finds in DDPRUN_STANDBY. Only where no generation lives.
    void start_standby(LocalRank local_rank, const std::vector<std::string>& command,
                       const Environment& environment, UniqueFd out, UniqueFd err,
                       const std::vector<int>& cpus, WorkerStdin stdin_from, UniqueFd socket);

    /// The standby of this slot becomes a worker of `generation`: answered by on_adopted, on_exited
    /// or on_lost. `page` as in start_worker().
    void adopt(Generation generation, LocalRank local_rank, UniqueFd page);

    /// To the process groups of these workers of the generation, as far as they still run.
    void signal_workers(Generation generation, std::vector<LocalRank> local_ranks, int signal);
    void forward_signal(Generation generation, int signal);

    /// Has this keeper, and each that follows it, look after ddprun's own terminal.
    void guard_terminal(KeeperTerminal terminal);

    /// SIGKILL to everything left of the generation, descendants too, until nothing is.
    void empty_generation(Generation generation);

    /// `pid` is a child of this process that no sweep may touch.
    void exclude(int pid) { containment_.exclude(pid); }

    /// In force, for status and reports.
    [[nodiscard]] ContainmentLevel containment() const { return containment_.level(); }

    [[nodiscard]] int keeper_pid() const { return process_.pid(); }

    /// Returns a reader of the CPU time of the workers and all that they have started. This call
    /// does not block; the reading may take long.
    [[nodiscard]] CpuTime cpu_time() const;

    /// Closes the socket: the keeper kills what it still holds and ends by itself. No event comes
    /// after this call; `done` is called when it has been reaped.
    void stop(std::function<void()> done = {});

private:
    [[nodiscard]] Result<void> launch();
    void ask_for_worker(KeeperSpawn spawn, std::vector<UniqueFd> fds);
    void request(const KeeperRequest& message, std::vector<UniqueFd> fds = {});
    void leave_child_signals();
    void wait_for_child_signal();
    void on_frame(std::string_view body);
    void on_channel_closed();
    void on_keeper_ended();
    void on_keeper_stuck(const std::string& rest);
    void sweep_what_it_left();
    void kill_groups_of_workers();
    void reap_orphans();
    void on_swept();
    void tell_unkillable(const std::string& rest);
    void finish_stop();
    void refuse_later(const KeeperSpawn& spawn, int error);

    void deliver(const KeeperStarted& event) {
        running_.insert(event.pid);
        events_.on_started(event.generation, event.local_rank, event.pid);
    }
    void deliver(const KeeperExited& event) {
        running_.erase(event.end.pid);
        events_.on_exited(*this, event.generation, event.local_rank, event.end);
    }
    void deliver(const KeeperEmptied& event) {
        held_ = Generation();
        events_.on_emptied(event.generation);
    }
    void deliver(const KeeperAdopted& event) {
        held_ = event.generation;
        events_.on_adopted(event.generation, event.local_rank, event.pid, event.page);
    }
    void deliver(const KeeperNotEmptied& event) {
        events_.on_not_emptied(*this, event.generation, event.what);
    }

    boost::asio::io_context& io_;
    KeeperOptions options_;
    Events events_;
    Containment containment_;
    Sweep sweep_;
    boost::asio::signal_set child_signals_;  ///< until it has stopped
    KeeperProcess process_;
    std::shared_ptr<FrameChannel> channel_;
    Generation held_;  ///< whose workers may live
    std::optional<KeeperTerminal> guarded_;
    std::set<int> running_;  ///< workers, as far as the keeper has told
    bool has_launched_ = false;
    bool has_keeper_worked_ = false;  ///< this one has said something
    bool is_rest_stuck_ = false;      ///< of what is being swept; the owner has been told
    bool is_stopping_ = false;
    std::function<void()> on_stopped_;
};

}  // namespace ddprun::agent
