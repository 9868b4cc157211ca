#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/limits.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/events/event_log.hpp"
#include "rendezvous/host/daemon_host.hpp"
#include "rendezvous/journal/journal.hpp"

namespace ddprun::rdzv {

/// Hears what becomes of an order.
using OrderAnswer = std::function<void(const OperatorReply&)>;

/// The hooks of ProgressWatch and WorkersReading, which follow jobs beside their runs.
struct NewsHooks {
    std::function<void(ConnectionId, const RendezvousMessage&)> send;
    std::function<void()> news;  ///< there is more for who watches
};

/// The effects of a DaemonHost that its server carries out. No hook except read_ready may call Jobs
/// again before it returns.
struct JobHooks {
    std::function<void(ConnectionId, const RendezvousMessage&)> send;
    std::function<void(const CloseConnection&)> close;
    std::function<void(const ResetConnection&)> reset;
    std::function<void(ConnectionId)> drop;
    std::function<void(const std::string& line)> log;
    /// ReadArrived, of all members of that job.
    std::function<void(const JobId&)> read_ready;
    /// The run of a job as it is after each step; null: there is none.
    std::function<void(const JobId&, const Run*)> stepped;
    std::function<void(const ServeStore&)> serve_store;
    std::function<void()> close_store;
    /// A job has new events.
    std::function<void()> published;
    /// Time alone changed a job or ended a wait: the daemon may be idle now.
    std::function<void()> time_passed;
};

/// The jobs of one daemon: gives the time and what arrives to their DaemonHost, and carries out its
/// effects with timers, event logs, the journal and hooks. Lives on the thread of `io`. Timers and
/// answers of the journal may come when their job is gone, but not when this object is.
class Jobs {
public:
    Jobs(boost::asio::io_context& io, DaemonHostOptions options, Rng rng, JobHooks hooks);
    Jobs(const Jobs&) = delete;
    Jobs& operator=(const Jobs&) = delete;

    /// As DaemonHost::begin(). `journal` holds `records` and outlives this; null: nothing is kept.
    void begin(Journal* journal, const std::map<JobId, std::string>& records);
    /// As DaemonHost::lead().
    void lead(Journal& journal, const std::map<JobId, std::string>& records,
              std::function<bool(Instant)> may_decide);
    /// As DaemonHost::follow().
    void follow(const std::string& leader);
    /// As DaemonHost::stop(), and no timer is left.
    void stop();

    void receives(ConnectionId connection, const AgentMessage& message);
    void ended(ConnectionId connection, PeerEnd how);
    void stranger_refused(const JobId& job, const StrangerRefused& stranger);

    /// Gives `order` to its job. `answer` is called once: when the order is durable, or why it is
    /// not taken, or that this stops. `from` is told to people.
    void obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer);

    /// The decisions, for those who only look.
    [[nodiscard]] const DaemonHost& host() const { return host_; }

    /// Events of its newest run, as far as this process saw them. Null: there is none.
    [[nodiscard]] std::shared_ptr<const EventLog> events(const JobId& job) const;

    /// Takes the news of a node about its workers, as EventLog::note_told().
    void note_told(const JobId& job, const Reached& reached);

    /// A line for who follows its events, as EventLog::pass(), and the end of such.
    void pass(const JobId& job, const std::string& about, std::string line);
    void drop_passing(const JobId& job);

    /// Nothing is left to be told: the journal may forget all runs.
    void erase_records();

private:
    /// A job as its watchers see it, with its timer.
    struct Shown {
        Shown(boost::asio::io_context& io, const Limits& limits);

        boost::asio::steady_timer timer;
        std::shared_ptr<EventLog> events;  ///< watchers may have it for longer
        std::uint64_t last_order = 0;      ///< the number of its last event `operator`
    };

    [[nodiscard]] Shown* shown(const JobId& job) const;
    Shown& show(const JobId& job);
    void carry_out(DaemonEffects effects);
    void carry_out(const DaemonEffect& effect);
    void publish(const PublishToWatchers& published);
    void answer(const AnswerOrder& answered);
    void write(const WriteJobRecord& wanted);
    void arm(const SetJobTimer& wanted);
    void arm_idle(Instant at);
    void read_arrived(const JobLife& life);
    void gone(const JobId& job);

    boost::asio::io_context& io_;
    const Limits limits_;
    JobHooks hooks_;
    DaemonHost host_;
    Journal* journal_ = nullptr;
    boost::asio::steady_timer idle_timer_;
    std::map<JobId, std::unique_ptr<Shown>> shown_;
    std::map<std::uint64_t, OrderAnswer> orders_;  ///< that the host has not answered
    std::uint64_t last_order_ = 0;
};

}  // namespace ddprun::rdzv
