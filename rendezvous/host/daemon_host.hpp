#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/host/job_host.hpp"
#include "rendezvous/host/lobby.hpp"
#include "rendezvous/host/port_claim.hpp"

namespace ddprun::rdzv {

// --------------------------------------------------------------------------------------- effects

/// The life of a job in a daemon. The same job id may come again: answers to an earlier life are
/// void.
struct JobLife {
    JobId job;
    std::uint64_t number = 0;

    bool operator==(const JobLife&) const = default;
};

/// Reset the connection: its peer has broken a rule. ended() follows.
struct ResetConnection {
    ConnectionId connection;
    std::string reason;
};
/// Close the connection at once, as a daemon that dies does. No ended() follows.
struct DropConnection {
    ConnectionId connection;
};
/// Publish the event to those who watch the job.
struct PublishToWatchers {
    JobId job;
    Event event;
};
/// The answer to order(). As Ordered.
struct AnswerOrder {
    JobId job;
    std::uint64_t number = 0;
    OperatorReply reply;
};
/// Write the record to the journal. written() follows.
struct WriteJobRecord {
    JobLife life;
    WriteRecord write;
};
/// Erase the job's record from the journal.
struct EraseJobRecord {
    JobId job;
};
/// Call timer_fired() at `at`, in place of the time that was set for this life before.
struct SetJobTimer {
    JobLife life;
    Instant at{};
};
/// Call wait_is_over() at `at`, in place of the time that was set before.
struct SetIdleTimer {
    Instant at{};
};
/// Feed all that the job's members have sent already, so that no node is judged unheard. Then call
/// nothing_more_arrived(). The last effect of an input.
struct ReadArrived {
    JobLife life;
};
/// The job's run is another than before its last input. The first effect of an input.
struct JobStepped {
    JobId job;
};
/// The job is forgotten.
struct JobGone {
    JobId job;
};
/// A fresh store on the daemon's port, for the members of a generation.
struct ServeStore {
    std::vector<std::string> admitted;  ///< their addresses; empty: all
    std::size_t clients = 0;            ///< so many may come at the same moment
};
/// No store on the daemon's port.
struct CloseStore {};

using DaemonEffect =
    std::variant<Send, CloseConnection, ResetConnection, DropConnection, Trace, PublishToWatchers,
                 AnswerOrder, WriteJobRecord, EraseJobRecord, SetJobTimer, SetIdleTimer,
                 ReadArrived, JobStepped, JobGone, ServeStore, CloseStore>;

/// In the order in which they are to be carried out.
using DaemonEffects = std::vector<DaemonEffect>;

// ------------------------------------------------------------------------------------- the host

struct DaemonHostOptions {
    CoordinatorOptions coordinator;
    bool is_one_of_several = false;  ///< decides nothing before lead()
    bool serves_tcpstore = false;    ///< to all clients of the port
    bool exits_when_idle = false;
    Milliseconds idle_start_timeout{30000};  ///< exits_when_idle: no agent that may join comes
    StepWatcher* watcher = nullptr;          ///< outlives the host
};

/// How a connection ended.
enum class PeerEnd {
    ProcessGone,  ///< end of stream
    Lost,         ///< it may come again
    ClosedHere,
};

/// A daemon without its sockets, timers and disk: the jobs with a JobHost each, which connection is
/// whose, who waits for a leader, which orders wait for their record, whose store is on the port,
/// and when a daemon that ends when idle may end. Pure: it is given the time. Server and simulator
/// carry out its effects. One thread.
///
/// Effects are carried out before the next input, except that ReadArrived causes inputs.
class DaemonHost {
public:
    DaemonHost(DaemonHostOptions options, Rng rng);
    DaemonHost(const DaemonHost&) = delete;
    DaemonHost& operator=(const DaemonHost&) = delete;

    // ---- which daemon decides

    /// The only daemon decides from now on, about the runs of `records`, which were made by
    /// encode(). Records that cannot be used are left out, with a line; their nodes are then asked
    /// for what they hold.
    void begin(Instant now, Keeping keeping, const std::map<JobId, std::string>& records,
               DaemonEffects& out);

    /// One of several decides from now on, as long as `may_decide` says so. Agents that have waited
    /// join here.
    void lead(Instant now, const std::map<JobId, std::string>& records,
              std::function<bool(Instant)> may_decide, DaemonEffects& out);

    /// One of several decides nothing from now on and forgets all jobs. Agents are sent to `leader`
    /// (HOST:PORT). Empty: no leader is known; agents that come wait until one is.
    void follow(const std::string& leader, DaemonEffects& out);

    /// All jobs are forgotten, and nothing is decided any more. The journal keeps its records.
    void stop(DaemonEffects& out);

    /// The daemon to which agents, questions and orders are sent (HOST:PORT; empty: not known);
    /// none: this daemon decides.
    [[nodiscard]] std::optional<std::string> leader() const;

    // ---- inputs

    /// A message of an authenticated agent, of the job for which it greeted.
    void receives(Instant now, ConnectionId connection, const AgentMessage& message,
                  DaemonEffects& out);

    /// An agent's connection has ended, and not because of CloseConnection or DropConnection.
    void ended(Instant now, ConnectionId connection, PeerEnd how, DaemonEffects& out);

    /// An operator asks for something; `from` is told to people. AnswerOrder with `number` follows
    /// once: when the order is durable, or why it is not taken, or that this daemon stops deciding.
    void order(Instant now, std::uint64_t number, const OperatorOrder& order,
               const std::string& from, DaemonEffects& out);

    /// A peer that asked for this job was turned away at the handshake.
    void stranger_refused(Instant now, const JobId& job, const StrangerRefused& stranger,
                          DaemonEffects& out);

    void timer_fired(Instant now, const JobLife& life, DaemonEffects& out);
    void nothing_more_arrived(Instant now, const JobLife& life, DaemonEffects& out);
    void wait_is_over() { awaits_agents_ = false; }

    /// The result of a write; `fault` is empty if the record is durable.
    void written(Instant now, const JobLife& life, std::uint64_t number, const std::string& fault,
                 DaemonEffects& out);

    // ---- looking

    /// Null: there is none.
    [[nodiscard]] const JobHost* host(const JobId& job) const;
    [[nodiscard]] const Run* run(const JobId& job) const;
    void visit(const std::function<void(const JobId&, const Coordinator&)>& look) const;
    [[nodiscard]] std::size_t size() const { return jobs_.size(); }

    /// Null: it has joined none, or was closed for its job.
    [[nodiscard]] const JobId* job_of(ConnectionId connection) const;
    /// All that have spoken to `job`, in order.
    [[nodiscard]] std::vector<ConnectionId> connections(const JobId& job) const;
    /// It belongs to a job, or waits for a leader.
    [[nodiscard]] bool has_joined(ConnectionId connection) const;
    /// The job whose workers' store is on the port; null: none.
    [[nodiscard]] const JobId* job_on_port() const { return port_.job(); }

    /// exits_when_idle: nothing keeps this daemon once no peer is connected.
    [[nodiscard]] bool is_idle() const { return !awaits_agents_ && are_all_done(); }
    /// A node has joined a job; unfit nodes do not count.
    [[nodiscard]] bool has_had_any() const { return has_had_any_; }

private:
    struct Job {
        Job(const JobId& id, const HostOptions& options, Rng rng, std::uint64_t of_life)
            : host(id, options, rng), life(of_life) {}

        JobHost host;
        const std::uint64_t life;
    };

    void restore(Instant now, const std::map<JobId, std::string>& records, DaemonEffects& out);
    void restore(Instant now, const JobId& id, const std::string& text, DaemonEffects& out);
    void await_agents(Instant now, DaemonEffects& out);
    [[nodiscard]] bool are_all_done() const;

    void join(Instant now, ConnectionId connection, const Join& message, DaemonEffects& out);
    void hear_unfit(Instant now, ConnectionId connection, const Unfit& message, DaemonEffects& out);
    void send_to_leader(ConnectionId connection, DaemonEffects& out) const;
    static void turn_away(ConnectionId connection, const Refused& refused, DaemonEffects& out);

    /// False: Limits::jobs_max other jobs are there.
    [[nodiscard]] bool open_job(Instant now, const JobId& id, DaemonEffects& out);
    Job& add(const JobId& id);
    /// Null: that life is over.
    [[nodiscard]] Job* find(const JobLife& life);
    /// False: the job is not there.
    bool step(Instant now, const JobId& id, const Input& input, DaemonEffects& out);
    void carry_over(const JobId& id, Job& job, HostEffects&& wanted, DaemonEffects& out);
    void carry_over(const JobId& id, Effect&& effect, DaemonEffects& out);
    void follow_on_port(const JobId& id, const Run* run, DaemonEffects& out);

    void forget(const JobId& id, DaemonEffects& out);
    void forget_closed(Instant now, DaemonEffects& out);
    void forget_one_without_run(DaemonEffects& out);
    void remove(const JobId& id, DaemonEffects& out);
    void refuse_orders_of(const JobId& id, DaemonEffects& out);
    void clear(DaemonEffects& out);

    DaemonHostOptions options_;
    HostOptions job_options_;
    Rng rng_;
    std::map<JobId, std::unique_ptr<Job>> jobs_;
    std::map<ConnectionId, JobId> members_;  ///< has spoken to that job, and was not closed for it
    std::map<std::uint64_t, JobId> orders_;  ///< wait for their record, at most Limits::orders_max
    std::optional<Lobby> lobby_;             ///< while another daemon decides, or none
    PortClaim port_;
    std::uint64_t last_life_ = 0;
    bool has_had_any_ = false;
    /// exits_when_idle: the first agent may still come, or one that was lost before it joined.
    bool awaits_agents_ = false;
};

}  // namespace ddprun::rdzv
