#pragma once

#include <cstddef>
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
#include "rendezvous/host/job_host.hpp"
#include "rendezvous/journal/journal.hpp"
#include "rendezvous/wire/control.hpp"

namespace ddprun::rdzv {

/// The journal of a daemon's runs, and the effect of a record that cannot be written.
struct Durable {
    Journal* journal = nullptr;  ///< none: nothing is kept
    bool is_strict = false;      ///< Keeping::Strictly
};

/// Hears what becomes of an order.
using OrderAnswer = std::function<void(const OperatorReply&)>;

/// The hooks of ProgressWatch and WorkersReading, which follow jobs beside their runs.
struct NewsHooks {
    std::function<void(ConnectionId, const RendezvousMessage&)> send;
    std::function<void()> news;  ///< there is more for who watches
};

/// Acts that coordinators make the daemon do. No hook except read_ready may call Jobs again before
/// it returns.
struct JobHooks {
    std::function<void(ConnectionId, const RendezvousMessage&)> send;
    std::function<void(ConnectionId, const std::string& reason)> close;
    std::function<void(const std::string& line)> log;
    /// Feeds what the members of a job have said already, so that no node is judged unheard.
    std::function<void(const JobId&)> read_ready;
    /// The run of a job as it is after each step; null: there is none.
    std::function<void(const JobId&, const Run*)> stepped;
    /// A job has new events.
    std::function<void()> published;
    /// Time alone changed a job: it may be done now.
    std::function<void()> time_passed;
};

/// The jobs of one daemon: gives their hosts the time and what arrives, carries out what they want,
/// with a timer each. Lives on the thread of `io`. Timers and answers of the journal refer to it by
/// the number of a job, so that they may come when that job is gone, but not when this object is.
class Jobs {
public:
    Jobs(boost::asio::io_context& io, const Limits& limits, Rng rng, JobHooks hooks,
         bool is_lasting);
    Jobs(const Jobs&) = delete;
    Jobs& operator=(const Jobs&) = delete;

    /// Forgets all jobs and continues with `records`, which `durable` holds. Records that cannot be
    /// used are left out, with a line; their nodes are then asked what they hold. `may_decide` is
    /// asked before anything is decided; false: another daemon decides by now, and nothing happens.
    void begin(Durable durable, std::function<bool(Instant)> may_decide,
               const std::map<JobId, std::string>& records);

    /// `job` has a coordinator now. False: Limits::jobs_max other jobs have one.
    [[nodiscard]] bool open(const JobId& job);

    /// Gives `input` to the coordinator of `job`. False: it is gone by now (closed long ago).
    bool step(const JobId& job, const Input& input);

    /// Gives `order` to the coordinator of its job. `answer` is called once: when the order is
    /// durable, or why it is not taken, or that this stops. `from` is told to people.
    void obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer);

    /// Null: there is none.
    [[nodiscard]] const Run* run(const JobId& job) const;

    /// Events of its newest run, as far as this process saw them. Null: there is none.
    [[nodiscard]] std::shared_ptr<const EventLog> events(const JobId& job) const;

    /// Takes the news of a node about its workers, as EventLog::note_told().
    void note_told(const JobId& job, const Reached& reached);

    /// A line for who follows its events, as EventLog::pass(), and the end of such.
    void pass(const JobId& job, const std::string& about, std::string line);
    void drop_passing(const JobId& job);

    [[nodiscard]] std::size_t size() const { return jobs_.size(); }
    /// A node has joined a job; unfit nodes do not count.
    [[nodiscard]] bool has_had_any() const { return has_had_any_; }
    [[nodiscard]] bool are_all_done() const;

    /// The coordinators, for those who only look.
    void visit(const std::function<void(const JobId&, const Coordinator&)>& look) const;

    /// Nothing is left to be told: the journal may forget all runs.
    void erase_records();

    /// Forgets all jobs; neither hooks nor the journal hear of it.
    void stop();

private:
    struct Job {
        Job(boost::asio::io_context& io, const JobId& id, const HostOptions& options, Rng rng,
            std::uint64_t of_this_name);

        JobHost host;
        boost::asio::steady_timer timer;
        std::shared_ptr<EventLog> events;  ///< watchers may have it for longer
        std::uint64_t last_order = 0;      ///< the number of its last event `operator`
        const std::uint64_t number;        ///< answers to an earlier one of that name are void
    };

    void restore(Instant now, const JobId& id, const std::string& text);
    Job& add(const JobId& id);
    void publish(Job& job, const Event& event);
    void remove(const JobId& id);
    void answer(std::uint64_t order, const OperatorReply& reply);
    void refuse_orders_of(const JobId& id);
    /// Null: that one is gone, maybe another has its name by now.
    Job* find(const JobId& id, std::uint64_t number);
    void carry_out(const JobId& id, Job& job, HostEffects wanted);
    void carry_out(const JobId& id, Job& job, const Effect& effect);
    void write(const JobId& id, const Job& job, const WriteRecord& wanted);
    void arm(const JobId& id, Job& job, Instant at);
    void timer_fired(const JobId& id, Job& job);
    void judge(const JobId& id, std::uint64_t number);
    void forget(const JobId& id);
    void forget_closed(Instant now);
    void forget_one_without_run();

    boost::asio::io_context& io_;
    HostOptions options_;
    Rng rng_;
    JobHooks hooks_;
    Durable durable_;
    std::map<JobId, std::unique_ptr<Job>> jobs_;
    /// Waits for its record.
    struct PendingOrder {
        JobId job;
        OrderAnswer answer;
    };
    std::map<std::uint64_t, PendingOrder> orders_;  ///< at most Limits::orders_max
    std::uint64_t last_order_ = 0;
    std::uint64_t last_number_ = 0;
    bool has_had_any_ = false;
};

}  // namespace ddprun::rdzv
