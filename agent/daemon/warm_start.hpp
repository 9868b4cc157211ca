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

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "agent/daemon/keeper_handle.hpp"
#include "agent/daemon/memory_watch.hpp"
#include "agent/helpers/checkpoint_reader.hpp"
#include "agent/output/worker_output.hpp"
#include "agent/warm/read_ahead_moment.hpp"
#include "agent/warm/standby_slots.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/file_look.hpp"
#include "base/os/unique_fd.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// Makes the next start of this node's workers a warm one. Owns the standbys, the keeper that holds
/// them, the workers that they are becoming, and the program that reads the newest checkpoint
/// ahead. Carries out what StandbySlots decides: starts standbys, sends them what to import, and
/// when a generation starts sends them their places. The protocol between WarmStart and the
/// standbys is in worker_runtime/python/INTERNALS.md. Without --warm no standby is prepared, and
/// every worker starts cold. Owned and called by the agent's thread; outlives the loop's run.
class WarmStart {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        /// The keeper for the first standby, which holds no generation. A failure says why there
        /// is none.
        std::function<Result<std::unique_ptr<KeeperHandle>>()> start_keeper;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
        /// Streams like those of this slot's worker in the last generation here, or of the first.
        std::function<Result<StandIn>(LocalRank, Rank, int world_size)> open_stand_in;
        /// The workers of this node, and the checkpoints that they have told; empty: none lives.
        std::function<std::vector<WorkerMoments>()> moments;
        std::function<std::vector<std::string>()> checkpoints;
        /// This worker goes on into its program.
        std::function<void(LocalRank, int pid)> on_gone;
        /// Its standby, of the keeper that was handed over, must end: it did not go on.
        std::function<void(LocalRank)> on_hung;
    };

    WarmStart(boost::asio::io_context& io, const SupervisorOptions& options, WarmOptions warm,
              Events events);
    WarmStart(const WarmStart&) = delete;
    WarmStart& operator=(const WarmStart&) = delete;

    /// Whether `keeper` is the one whose standbys are not workers yet.
    [[nodiscard]] bool holds(const KeeperHandle& keeper) const { return &keeper == keeper_.get(); }
    /// As KeeperHandle.
    void exclude(int pid);

    /// `effects` are what the Supervisor answered to `input`; they are not carried out yet.
    /// `is_ending`: the agent goes, and no worker starts here any more. Prepares standbys while
    /// workers run, and none while they are being stopped; has the checkpoint read ahead once they
    /// are.
    void observe(const Input& input, const Effects& effects, bool is_ending);

    /// As StandbySlots.
    void begin();

    /// Returns the pipe by which this slot's cold worker reports its imports; not open: none.
    [[nodiscard]] UniqueFd imports_pipe(LocalRank local_rank);

    /// These workers start: which of them have a standby. If any has, the standbys' keeper and
    /// `keeper`, which holds no process, change places, and leave() follows for each of them. The
    /// next standbys are prepared from now on.
    [[nodiscard]] std::set<LocalRank> take(const std::vector<WorkerSpec>& workers,
                                           std::unique_ptr<KeeperHandle>& keeper);

    /// This worker has a standby, which is being adopted; `pipes` is what it will write to.
    void leave(const WorkerSpec& worker, OutputPipes pipes);

    /// It was adopted: is told its place. on_gone follows, or on_hung, or its end.
    void tell_place(LocalRank local_rank, int pid, const std::string& page);

    /// The standby that was to be this worker has ended. Its pipes, for a cold one; none: it was
    /// none that leaves, or it has gone on, which on_gone told.
    [[nodiscard]] std::optional<OutputPipes> take_back(LocalRank local_rank);

    /// The standbys' keeper has told that the standby of `slot` has ended.
    void has_ended(LocalRank slot);
    /// The standbys' keeper was lost, and all that it held.
    void are_lost();
    /// The standbys' keeper does not come to an end of `rest`.
    void cannot_be_emptied(const std::string& rest);

    /// Ends them, and what is read ahead. `done` is called once they are gone, or at once if no
    /// standby exists, or when they are not gone after Limits::unkillable_after.
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

    void pause();
    void check();
    void observe(const Effect& effect, bool is_ending);
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
    std::optional<MemoryWatch> memory_watch_;        ///< none: no standby is ever prepared
    Rank base_rank_;  ///< of the last generation here, as is the next
    int world_size_ = 1;
    ReadAheadMoment read_ahead_;
    CheckpointReader checkpoint_;
};

}  // namespace ddprun::agent
