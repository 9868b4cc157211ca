#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "agent/daemon/agent_view.hpp"
#include "agent/daemon/node_watch.hpp"
#include "agent/daemon/progress_teller.hpp"
#include "agent/helpers/workers_readers.hpp"
#include "agent/output/worker_output.hpp"
#include "agent/watch/chronicle.hpp"
#include "agent/watch/live_line.hpp"
#include "agent/watch/moments_told.hpp"
#include "agent/watch/node_progress.hpp"
#include "agent/watch/saves_watch.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/result.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/client/link.hpp"
#include "rendezvous/events/event_log.hpp"
#include "rendezvous/http/http_server.hpp"

namespace ddprun::agent {

/// Publishes the events of this node in `events.jsonl` and on the socket in the run's folder
/// (docs/events.md), and reports to the rendezvous how far the workers are. On the agent's thread;
/// outlives the run of the loop.
class RunEvents final : public rdzv::Watched {
public:
    /// `has_live_line`: a terminal shows how far the job is.
    RunEvents(boost::asio::io_context& io, const SupervisorOptions& options,
              const WatchLimits& watch_limits, const std::string& program, WorkerOutput& output,
              bool has_live_line, AgentView agent, WatchMeans means);
    RunEvents(const RunEvents&) = delete;
    RunEvents& operator=(const RunEvents&) = delete;

    /// `effects` are what the Supervisor answered to `input` at `now`; they are not carried out
    /// yet.
    void observe(Instant now, const Input& input, const Effects& effects);

    void worker_started(Generation generation, LocalRank local_rank, int pid);

    /// The run has its folder: answers there. Once; later calls do nothing.
    void begin_to_answer();

    /// There is news of workers' saves in their page.
    void look_at_saves() { look(/*have_ended=*/false); }

    /// Returns how the time of this run was spent so far.
    [[nodiscard]] const rdzv::TimeUse& time_use() const { return log_->time_use(); }

    /// The workers have ended for good: readers that follow their output are sent the rest, then
    /// `done` is called; at once if no reader does.
    void finish_reading(std::function<void()> done);

    /// The link is gone, and with it those who follow over it: finish_reading() waits for them no
    /// longer.
    void cut_readers_off();

    /// Tells watchers the last events; `done` is called when they have them, or soon.
    void stop(std::function<void()> done);

    [[nodiscard]] Result<std::shared_ptr<const rdzv::EventLog>> events(
        const std::string& job) override;
    [[nodiscard]] Result<MakeText> status(const std::string& job) override;
    /// Refused: the rendezvous has them.
    void obey(const rdzv::OperatorOrder& order, const std::string& from,
              OrderAnswer answer) override;
    [[nodiscard]] Result<MakeText> metrics(rdzv::FiguresOf extent, std::size_t watchers) override;
    [[nodiscard]] Result<std::uint64_t> read_workers(const std::string& job,
                                                     const rdzv::ReadWorkers& question) override;
    [[nodiscard]] std::optional<std::string> take_read(std::uint64_t reading) override;
    void end_reading(std::uint64_t reading) override;

private:
    [[nodiscard]] std::vector<WorkerState> workers() const;
    /// State of one reader on this run's socket.
    struct ReadHere {
        std::string waiting;
        bool is_owed = false;  ///< it was sent, and is not taken
        bool is_over = false;
    };

    void take_piece(const rdzv::WorkersRead& piece);
    void hear(const rdzv::RendezvousMessage& message, Instant now);
    void tell_moments(std::optional<rdzv::Reached> reached);
    [[nodiscard]] rdzv::Progress progress();
    [[nodiscard]] rdzv::Progress watched_progress();
    [[nodiscard]] nlohmann::ordered_json workers_json() const;
    [[nodiscard]] nlohmann::ordered_json state_now(const rdzv::Progress& told) const;
    void keep_state();
    [[nodiscard]] Result<void> check_name(const std::string& job) const;
    void look(bool have_ended);
    void estimate(Instant now, bool have_ended, Chronicle::Events& events);
    void show_live();
    void keep(Instant now, const Chronicle::Events& events);
    void keep_hang(const HangSeen& seen);

    Chronicle chronicle_;
    MomentsTold moments_told_;
    SavesWatch saves_watch_;
    DeadlineTimer saves_timer_;  ///< armed while news of saves is held back
    NodeProgress progress_;
    WorkerOutput& output_;
    AgentView agent_;
    WatchMeans means_;
    ProgressTeller teller_;
    NodeWatch node_watch_;
    LiveLine live_line_;
    DeadlineTimer live_timer_;  ///< armed while this node shows that line
    bool has_live_line_;
    std::shared_ptr<rdzv::EventLog> log_;
    rdzv::HttpServer server_;
    const SupervisorOptions& options_;
    WatchLimits watch_limits_;
    std::string program_;
    Generation generation_;  ///< the newest one started here; 0: none
    int base_rank_ = 0;
    int world_size_ = 0;
    std::string run_folder_;
    WorkersReaders readers_;       ///< for the rendezvous
    WorkersReaders readers_here_;  ///< for who asks on this run's socket
    std::map<std::uint64_t, ReadHere> read_here_;
    std::uint64_t last_reading_ = 0;
    bool is_answering_ = false;
};

}  // namespace ddprun::agent
