#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "agent/supervise/lease_watch.hpp"
#include "agent/supervise/leave_deadlines.hpp"
#include "agent/supervise/quiet_watch.hpp"
#include "agent/supervise/wait_notice.hpp"
#include "agent/supervise/worker_group.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// The wait that keeps a node from going on: the nearest one, if there are several.
enum class Wait {
    Nothing,
    KilledWorkers,   ///< to be gone
    Stacks,          ///< of a generation that hangs, to be saved
    StoppedWorkers,  ///< to end
    UnfitHeard,      ///< the rendezvous to have heard that this node is not fit
    Link,            ///< a connection to the rendezvous
    GpuMemory,       ///< to be freed
    Preflight,
    Prepare,       ///< the command that runs here
    PrepareToEnd,  ///< the same, which was signalled or killed
    LastWords,     ///< of a failed worker
    StoreSocket,
    JoinAnswer,
    RendezvousSays,  ///< what the rendezvous says it waits for
    OtherNodesDrain,
    Generation,     ///< the rendezvous has given no reason
    OtherNodesEnd,  ///< workers here have ended
};

/// Why an agent exits.
enum class ExitReason {
    Signal,    ///< or a notice
    Released,  ///< the job goes on without this node
    Refused,
    Verdict,
    RendezvousLost,  ///< or never found
    Unprepared,      ///< the prepare command failed here
    Unusable,        ///< what this node was given cannot work, or it is not fit
    Unkillable,      ///< a worker survived SIGKILL
    Bug,             ///< of ddprun itself
};

/// The cause for which an agent leaves its job, with time to save.
enum class LeaveCause {
    None,    ///< it does not, or goes for another reason
    Signal,  ///< but no Ctrl-C
    TimeLimit,
    Notice,  ///< that concerns this node
};

// ------------------------------------------------------------------------- the way to the others

struct LinkIsDown {
    std::string why;  ///< empty: no attempt has ended yet
};

/// The join was not sent: there is no socket for the workers' store yet.
struct LinkIsUp {};

struct JoinIsSent {
    Instant at{};
    bool is_to_prepare = false;  ///< it says that something has to end here before workers start
};

struct LinkIsAccepted {
    Milliseconds beat_interval{0};  ///< 0: none are wanted
    std::optional<Instant> beat_at;
    /// The last answer. If unset, silence ends nothing, for no beats are wanted or DropLink was
    /// said.
    std::optional<Instant> heard_at;
};

using LinkState = std::variant<LinkIsDown, LinkIsUp, JoinIsSent, LinkIsAccepted>;

/// The wait of the rendezvous, as it says.
struct RendezvousWait {
    std::string text;  ///< empty: for nothing
    Instant since{};
    Milliseconds limit{0};           ///< 0: none
    std::optional<Instant> over_at;  ///< then what the text announces happens
};

// -------------------------------------------------------------- the socket of the workers' store

enum class StoreState {
    None,       ///< not asked for
    Opening,    ///< asked for
    Listening,  ///< ready for the next generation
    Serving,    ///< used up by the current one
};

/// The wait before this node says that it is ready for a generation.
enum class Preparation {
    None,
    GpuMemory,  ///< that of the last generation
    Preflight,
};

/// The prepare command of this node. It runs when the rendezvous says so, at most once.
enum class PrepareState {
    NotRun,
    Runs,
    Stops,    ///< signalled; to be killed at Supervisor::prepare_kill_at_
    Killing,  ///< it has ended or is killed; what it left is not proven gone
    Done,
};

/// The decision to go, with what is left to be said. Workers that may live go first.
struct Ending {
    ExitReason reason;
    int exit_code = 0;
    std::optional<rdzv::Verdict> verdict;
    Instant verdict_at{};  ///< when it was heard
    bool says_goodbye = true;
    std::string unfit = {};       ///< as Goodbye::unfit
    std::string unprepared = {};  ///< as Goodbye::unprepared
    /// Instead of a Goodbye, for this node has not joined: Unfit is said until it is answered, at
    /// the longest until then.
    std::optional<Instant> tells_until = {};
    std::string why = {};  ///< as Exit::why
};

/// This node is asked to leave the job.
struct Leaving {
    int signal = SIGTERM;  ///< what came first; the workers are ended by it, too
    Instant since{};
    bool is_by_notice = false;  ///< no signal came
    bool workers_save = false;  ///< as Signalled::workers_save
};

/// How workers are to go: by a signal, and killed after `grace`.
struct StopOrder {
    int signal = 0;
    Duration grace{};
    /// They may save first; those that read the shared page are asked there, without a signal.
    bool is_drain = false;
    Duration within{};  ///< another node's are gone by then; 0: none sooner
};

/// Decides everything on one node: when workers start, are signalled, killed and judged, what is
/// reported, and when the agent may go. Pure, like rdzv::Coordinator: README.md beside this file
/// holds its state × input table. Owned and called by one thread. One file per concern:
/// supervisor.cpp          dispatch, deadlines
/// supervisor_link.cpp     connection, store socket, joining, what is said again, beats, and until
///                         when workers may publish
/// supervisor_group.cpp    start, deaths, stop, proof of emptiness
/// supervisor_prepare.cpp  the prepare command
/// supervisor_quiet.cpp    signs of life, and a generation that hangs
/// supervisor_ending.cpp   signals, notices, leaving, verdict, losing the rendezvous
/// supervisor_explain.cpp  texts for people
class Supervisor {
public:
    explicit Supervisor(SupervisorOptions options);
    Supervisor(const Supervisor&) = delete;
    Supervisor& operator=(const Supervisor&) = delete;

    /// Takes one input at `now`, which never goes backwards; appends what must be done, in order.
    void step(Instant now, const Input& input, Effects& out);

    [[nodiscard]] std::optional<Instant> next_deadline() const;

    [[nodiscard]] Wait waits_for() const;

    /// The same for people; empty when nothing is awaited.
    [[nodiscard]] std::string explain() const { return explain(waits_for()); }

    /// Why the agent will exit, once that is decided. Workers that may live go first.
    [[nodiscard]] std::optional<ExitReason> exit_reason() const;

    /// Why it was left, once exit_reason() is known.
    [[nodiscard]] LeaveCause leave_cause() const;

    /// How long workers took to leave when they were last asked, here or as the options say.
    [[nodiscard]] std::optional<Milliseconds> saving() const;

    /// The generation whose workers may live here; none when proven empty. For checkers.
    [[nodiscard]] std::optional<Generation> held_generation() const;

private:
    void begin(Instant now, Effects& out);
    void take(const LinkUp& input);
    void take(const LinkDown& input);
    void take(const FromRendezvous& input);
    void take(const StoreOpened& input);
    void take(const StoreFailed& input);
    void take(const WorkerDying& input);
    void take(const WorkerExited& input);
    void take(const LastWords& input);
    void take(const Emptied& input);
    void take(const NotEmptied& input);
    void take(const Looked& input);
    void take(const GpusLooked& input);
    void take(const StacksSaved& input);
    void take(const GpuMemoryAwaited& input);
    void take(const PreflightDone& input);
    void take(const PrepareEnded& input);
    void take(const KeeperLost& input);
    void take(const Signalled& input);
    void take(const WorkersSignalled& input);
    void take(const LeaveNotice& input);
    void take(const Tick& /*input*/) {}
    /// Does what has become due, after each input.
    void settle();
    [[nodiscard]] std::string explain(Wait wait) const;

    // Messages of the rendezvous.
    void hear(const rdzv::Accepted& message);
    void hear(const rdzv::Refused& message);
    /// It would overlook `flags`; `others` it knows.
    void end_for_old_rendezvous(const std::string& flags, const std::string& others);
    void hear(const rdzv::Waiting& message);
    void hear(const rdzv::Notice& message);
    void hear(const rdzv::Watch& /*message*/) {}        // ProgressTeller answers it.
    void hear(const rdzv::ReadWorkers& /*message*/) {}  // WorkersReaders answer it, and the next.
    void hear(const rdzv::ReadOn& /*message*/) {}
    void hear(const rdzv::Happened& /*message*/) {}  // Notifier passes it on.
    void hear(const rdzv::Redirect& /*message*/) {}  // The link follows it by itself.
    void hear(const rdzv::Prepare& message);
    void hear(const rdzv::Start& message);
    void hear(const rdzv::Stop& message);
    void hear(const rdzv::Released& message);
    void hear(const rdzv::Verdict& message);
    void hear(const rdzv::Acknowledge& message);

    // Connection.
    template <typename T>
    void emit(T effect) {
        out_->emplace_back(std::move(effect));
    }
    void say(std::string text);
    void trace(std::string text);
    [[nodiscard]] std::string explain_down(const LinkIsDown& down) const;
    void say_wait(Wait wait, const std::string& text);
    void say_connected();
    [[nodiscard]] bool is_link_up() const;
    [[nodiscard]] bool has_joined() const;
    [[nodiscard]] bool is_accepted() const;
    /// Drops `message` unless the join was accepted: hear(Accepted) says again what matters.
    void tell(rdzv::AgentMessage message);
    void choose_interface(const LinkUp& input);
    void prepare_next();
    void check_fitness();
    void end_unfit(const std::string& why);
    void tell_unfit();
    void make_ready();
    void open_store();
    void say_ready();
    void join_if_possible();
    void say_again();
    void send_due_beat();
    void judge_silence();
    [[nodiscard]] std::optional<Instant> silence_end() const;
    [[nodiscard]] Milliseconds lost_timeout() const;
    [[nodiscard]] std::optional<Instant> give_up_at() const;

    // Prepare command.
    /// Processes of it may live.
    [[nodiscard]] bool holds_prepare() const;
    void stop_prepare();
    void kill_prepare();
    void prepare_is_gone();
    void tell_prepared();
    void judge_prepare();
    [[nodiscard]] std::optional<Instant> prepare_deadline() const;

    // Generation.
    [[nodiscard]] bool holds_workers() const;
    [[nodiscard]] Generation newest_known() const;
    [[nodiscard]] std::string flaw_of(const rdzv::Start& row) const;
    void begin_generation(const rdzv::Start& row);
    void say_who_is_debugged(const rdzv::Start& row);
    void end_worker(LocalRank local_rank, rdzv::Evidence evidence, const SavedWork& saved);
    void report_again(LocalRank local_rank);
    void collect_last_words(LocalRank local_rank);
    void judge_held_back(bool is_all);
    void forgive_held_back();
    void report_failure(LocalRank local_rank, const rdzv::Evidence& evidence, Instant at);
    void stop_workers(const StopOrder& order);
    void look_if_due();
    [[nodiscard]] int count_watched(Generation generation) const;
    void say_quiet();
    void tell_quiet();
    void begin_to_save_stacks(const rdzv::Stop& message);
    void end_failing_workers();
    void supersede_group();
    [[nodiscard]] Instant publish_until() const;
    void update_publishing();
    void kill_workers();
    void report_stopped();

    // Ending.
    [[nodiscard]] bool is_leaving() const { return leaving_.has_value(); }
    [[nodiscard]] bool leaves_by_notice() const { return is_leaving() && leaving_->is_by_notice; }
    [[nodiscard]] bool is_telling_unfit() const {
        return !is_done_ && ending_.has_value() && ending_->tells_until.has_value();
    }
    [[nodiscard]] int signal_exit_code() const;
    void tell_leave();
    [[nodiscard]] std::string why_leaving() const;
    [[nodiscard]] std::string why_left() const;
    [[nodiscard]] std::string leaving_text() const;
    [[nodiscard]] std::optional<Instant> leave_at() const;
    void leave_if_due();
    void begin_to_leave(bool is_said);
    [[nodiscard]] bool is_ended_by_user(const WorkerExited& input) const;
    void abort_now();
    void end_by_signal();
    void leave_alone();
    void end_with(Ending ending);
    void end_saying(const std::string& why, Ending ending);
    void end_after_stop(Ending ending);
    void fail_internally(const std::string& what);
    void say_saved();
    void finish();
    void lose_rendezvous();

    SupervisorOptions options_;
    Instant now_{};
    std::optional<Instant> first_step_;
    Effects* out_ = nullptr;

    LinkState link_ = LinkIsDown{};
    std::string local_address_;
    std::string said_of_interface_;
    std::string run_token_;  ///< empty until a join was accepted
    bool is_daemon_lasting_ = false;
    std::optional<Instant> unheard_since_;  ///< since when no join of ours counts
    LeaseWatch lease_;
    std::uint64_t beats_ = 0;
    StoreState store_ = StoreState::None;
    Preparation preparation_ = Preparation::None;
    PrepareState prepare_ = PrepareState::NotRun;
    PrepareEnded prepare_end_;
    Instant prepare_kill_at_{};
    Instant prepare_since_{};
    StoreAddress store_address_;  ///< the last one opened
    StoreAddress rendezvous_;     ///< where it was last found: its store, if it serves one

    std::optional<WorkerGroup> group_;
    QuietWatch quiet_;
    std::string said_of_debugging_;
    std::string group_token_;         ///< the run that started group_
    Generation highest_heard_;        ///< of any run
    Generation fenced_;               ///< newest generation of this run whose end was asked unseen
    Generation owed_;                 ///< whose Stopped is to be sent over this connection; 0: none
    RendezvousWait rendezvous_wait_;  ///< while there is no generation
    std::optional<Instant> said_unheard_since_;  ///< the console was told of a lost rendezvous

    std::optional<Leaving> leaving_;  ///< from the first signal or notice on
    LeaveDeadlines deadlines_;
    std::optional<Ending> ending_;
    bool is_done_ = false;
    WaitNotice notice_;
};

}  // namespace ddprun::agent
