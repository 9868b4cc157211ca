#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/daemon/keeper_handle.hpp"
#include "agent/daemon/memory_watch.hpp"
#include "agent/output/worker_output.hpp"
#include "agent/warm/standby_slots.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/file_look.hpp"
#include "base/os/unique_fd.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// The standbys of this node, the keeper that holds them, and the workers that they are becoming.
/// Carries out what StandbySlots decides: starts standbys, tells them what to import, and when a
/// generation starts tells them their places. What it says to them and they to it is in
/// worker_runtime/python/README.md. Owned and called by the agent's thread; outlives the loop's
/// run.
class StandbyPool {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        /// The keeper for the first standby, which holds no generation. A failure says why there
        /// is none.
        std::function<Result<std::unique_ptr<KeeperHandle>>()> start_keeper;
        /// Streams like those of this slot's worker.
        std::function<Result<StandIn>(LocalRank)> open_stand_in;
        /// Some worker of this node that tells its steps has not told the first.
        std::function<bool()> awaits_first_step;
        /// This worker goes on into its program.
        std::function<void(LocalRank, int pid)> on_gone;
        /// Its standby, of the keeper that was handed over, must end: it did not go on.
        std::function<void(LocalRank)> on_hung;
    };

    StandbyPool(boost::asio::io_context& io, const SupervisorOptions& options, WarmOptions warm,
                Events events);
    StandbyPool(const StandbyPool&) = delete;
    StandbyPool& operator=(const StandbyPool&) = delete;

    /// Whether `keeper` is the one whose standbys are not workers yet.
    [[nodiscard]] bool holds(const KeeperHandle& keeper) const { return &keeper == keeper_.get(); }
    /// As KeeperHandle.
    void exclude(int pid);

    /// As StandbySlots.
    void begin();
    void pause();

    /// Those that wait look whether what they have imported is still what is there, so that this
    /// takes no time once they have their places.
    void check();

    /// What the cold worker of this slot is to have for telling what it imports; not open: nothing.
    [[nodiscard]] UniqueFd imports_pipe(LocalRank local_rank);

    /// These workers start: which of them have a standby. If any has, the standbys' keeper and
    /// `keeper`, which holds nobody, change places, and leave() follows for each of them.
    [[nodiscard]] std::set<LocalRank> take(const std::vector<WorkerSpec>& workers,
                                           std::unique_ptr<KeeperHandle>& keeper);

    /// This worker has a standby, which is being adopted; `pipes` is what it will write to.
    void leave(const WorkerSpec& worker, OutputPipes pipes);

    /// It was adopted: is told its place. on_gone follows, or on_hung, or its end.
    void tell_place(LocalRank local_rank, int pid, const std::string& page);

    /// The standby that was to be this worker has ended. Its pipes, for a cold one; none: it was
    /// none that leaves, or it has gone on, which on_gone told.
    [[nodiscard]] std::optional<OutputPipes> take_back(LocalRank local_rank);

    /// The keeper of the generation that starts was lost.
    void leaving_are_lost();

    /// The standbys' keeper has told that the standby of `slot` has ended.
    void has_ended(LocalRank slot);
    /// The standbys' keeper was lost, and all that it held.
    void are_lost();

    /// Ends them. `done` is called once they are gone, or at once if nobody is there, or when they
    /// are not gone after Limits::unkillable_after.
    void stop(std::function<void()> done);

private:
    struct Standby {
        std::uint64_t number = 0;  ///< never given twice
        boost::asio::posix::stream_descriptor socket;
        StandIn stand_in;
        bool is_out_terminal = false;  ///< what it found as its stdout, as is the next
        bool is_err_terminal = false;
        std::string order;      ///< what it imports; empty: the trial
        std::string importing;  ///< the module; empty: none yet
    };
    /// The end of a pipe that is read.
    struct ToldImports {
        boost::asio::posix::stream_descriptor pipe;
        std::string unfinished;  ///< a line without its end
    };
    struct Leaving {
        Standby standby;
        WorkerSpec worker;
        OutputPipes pipes;
        int pid = 0;
    };

    void settle();
    void carry_out(const TryStandby& effect);
    void carry_out(const PrepareStandby& effect);
    void carry_out(const DiscardStandby& effect);
    void prepare(const PrepareStandby& effect);
    void carry_out(const Say& effect) { events_.say(effect.text); }
    void start(LocalRank slot, const std::vector<std::string>& command, std::string order);
    [[nodiscard]] bool start_in_keeper(LocalRank slot, const std::vector<std::string>& command,
                                       std::string order);
    void hear_imports(LocalRank local_rank);
    void learn(LocalRank local_rank, std::string_view bytes);
    void hear_waits(const std::string& identity);
    void look_at_program();
    void take_program(const std::string& identity);
    void listen(LocalRank slot, Standby& standby);
    void read_standby(LocalRank slot);
    void read_leaving(LocalRank slot);
    void hear(LocalRank slot, std::string_view message);
    void judge_written(LocalRank slot, const Standby& standby);
    void kill(LocalRank slot);
    void finish_stop();

    boost::asio::io_context& io_;
    Limits limits_;
    WarmOptions warm_;
    Events events_;
    std::vector<WorkerSpec> specs_;  ///< by slot
    StandbySlots slots_;
    std::unique_ptr<KeeperHandle> keeper_;  ///< null: no standby was started yet
    DeadlineTimer timer_;                   ///< of slots_
    DeadlineTimer leaving_timer_;           ///< of all that leave
    DeadlineTimer stop_timer_;
    std::function<void()> on_stopped_;
    std::map<LocalRank, Standby> standbys_;
    std::map<LocalRank, Leaving> leaving_;
    std::uint64_t last_number_ = 0;
    bool has_started_ = false;                  ///< a generation
    std::map<LocalRank, ToldImports> imports_;  ///< of workers that started cold
    std::string waiting_program_;  ///< which file has told that it can wait; empty: none
    // Until it is known which file the program is: its file system may stall.
    FileLook program_look_;
    bool is_look_old_ = false;                       ///< more was asked since that look began
    std::string told_program_;                       ///< has told that it can wait; empty: none
    std::map<LocalRank, PrepareStandby> unchecked_;  ///< those that are to be started then
    MemoryWatch memory_watch_;
};

}  // namespace ddprun::agent
