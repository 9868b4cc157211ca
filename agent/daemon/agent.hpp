#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/contract/agent_options.hpp"
#include "agent/daemon/generation_on_node.hpp"
#include "agent/daemon/keeper_handle.hpp"
#include "agent/daemon/prepare_output.hpp"
#include "agent/daemon/run_events.hpp"
#include "agent/daemon/signal_watch.hpp"
#include "agent/daemon/store_host.hpp"
#include "agent/daemon/terminal_relay.hpp"
#include "agent/daemon/warm_start.hpp"
#include "agent/helpers/helper_programs.hpp"
#include "agent/helpers/memory_program.hpp"
#include "agent/notices/drain_notices.hpp"
#include "agent/notify/notifier.hpp"
#include "agent/output/worker_output.hpp"
#include "agent/supervise/supervisor.hpp"
#include "base/os/deadline_timer.hpp"
#include "rendezvous/client/link.hpp"

namespace ddprun::agent {

/// The IO around one Supervisor: feeds it what the link, the keeper, the output thread, the store
/// and signals say, and carries out its effects. Lives on the one thread of `io`; nothing here
/// blocks.
///
/// Lifetimes, of this and of all that it owns: an object outlives the run of the loop that has its
/// handlers, so that these hold plain references to it. Another thread hands work over by posting
/// it; the object that owns the thread joins it before it is gone.
class Agent {
public:
    Agent(boost::asio::io_context& io, AgentOptions options, KeeperOptions keeper,
          std::unique_ptr<rdzv::Link> link);

    /// Returns when the last line of output is written; the loop must not run any more.
    ~Agent();
    Agent(const Agent&) = delete;
    Agent& operator=(const Agent&) = delete;

    /// Starts keeper and link. `on_exit` is called once, when no worker is left and the rendezvous
    /// was told. Fails, having done nothing, if there can be no keeper.
    [[nodiscard]] Result<void> start(std::function<void(int exit_code)> on_exit);

    /// `pid` is a child of this process that is no worker's descendant; after start().
    void exclude_from_sweeps(int pid);

    /// Returns why the supervisor left the job, once on_exit was called.
    [[nodiscard]] LeaveCause leave_cause() const { return supervisor_->leave_cause(); }

    /// One line of ddprun's own, in order with the workers' output.
    void say(const std::string& line);

private:
    void start_link();
    void hear_last(Input last);
    void hear_of_link(Input change);
    [[nodiscard]] KeeperHandle::Events keeper_events();
    [[nodiscard]] WarmStart::Events warm_events();
    [[nodiscard]] bool start_cold(Generation number, LocalRank local_rank, const WorkerEnd& end);
    [[nodiscard]] TerminalRelay::Events relay_events();

    void feed(Input input);
    void carry_out(Effect effect);
    void run_prepare(const RunPrepare& effect);
    void open_store(const std::string& host);
    void start_workers(StartWorkers start);
    void offer_memory(StartWorkers& start);
    void spawn(Generation number);
    void start_worker(Generation number, const WorkerSpec& worker, OutputPipes own);
    void signal_workers(const SignalWorkers& effect);
    void follow_window();
    void look_at_workers(Generation number);
    void be_signalled(int signal);
    void collect_last_words(const CollectLastWords& effect);
    void empty_generation(Generation number);
    void emptied(Generation number);
    void show(const rdzv::Verdict& verdict);
    void end(int code, const std::string& why);
    void finish_end();
    void finish_notices();

    /// Null: that generation is not here, or not any more.
    [[nodiscard]] GenerationOnNode* held(Generation number);
    [[nodiscard]] std::map<LocalRank, int> pids_of(Generation number);
    void worker_runs(Generation number, LocalRank local_rank, int pid);
    void worker_ended(Generation number, LocalRank local_rank, const WorkerEnd& end);
    void worker_may_die(Generation number, LocalRank local_rank, FatalSignal told);

    boost::asio::io_context& io_;
    AgentOptions options_;
    KeeperOptions keeper_options_;
    std::unique_ptr<rdzv::Link> link_;
    std::optional<Supervisor> supervisor_;  ///< from start() on: it knows what contains workers
    std::unique_ptr<WorkerOutput> output_;
    std::optional<RunEvents> events_;             ///< as supervisor_
    std::atomic<bool> is_save_look_due_ = false;  ///< it waits for this thread
    StoreHost store_;
    std::unique_ptr<KeeperHandle> keeper_;  ///< of the generation that lives here
    std::optional<WarmStart> warm_;         ///< as supervisor_
    HelperPrograms helpers_;
    std::optional<MemoryProgram> memory_;  ///< none: no checkpoint is kept in memory
    PrepareOutput prepare_output_;
    DrainNotices notices_;
    std::optional<Notifier> notifier_;  ///< none: --notify names no target
    DeadlineTimer timer_;               ///< of the supervisor
    SignalWatch signals_;
    SignalWatch workers_signals_;
    SignalWatch window_signals_;
    std::optional<TerminalRelay> relay_;  ///< where a worker may have ddprun's terminal
    std::function<void(int)> on_exit_;

    std::deque<Input> inputs_;  ///< bounded: one step answers with at most one input per effect
    /// The verdict or release that waits for readers of the logs, and what the link did since;
    /// bounded by the time they have and by the pauses between attempts to connect.
    std::deque<Input> held_back_;
    bool is_feeding_ = false;
    bool has_ended_ = false;
    int exit_code_ = 0;
    std::string verdict_text_;  ///< of the verdict that was shown; empty: none

    std::optional<GenerationOnNode> generation_;  ///< none: nothing is left of the last one
};

}  // namespace ddprun::agent
