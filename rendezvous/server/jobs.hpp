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
#include "rendezvous/server/recorder.hpp"

namespace ddprun::rdzv {

/// What coordinators make the daemon do. None of these may call Jobs again before it returns,
/// except read_ready.
struct JobHooks {
    std::function<void(ConnectionId, const RendezvousMessage&)> send;
    std::function<void(ConnectionId, const std::string& reason)> close;
    std::function<void(const std::string& line)> log;
    /// Feeds what the members of a job have said already, so that nobody is judged unheard.
    std::function<void(const JobId&)> read_ready;
    /// The run of a job as it is after each step; null: there is none.
    std::function<void(const JobId&, const Run*)> stepped;
    /// Time alone changed a job: it may be done now.
    std::function<void()> time_passed;
    /// Asked before anything is decided; false: somebody else decides by now, and nothing happens.
    std::function<bool(Instant)> may_decide;
};

/// The coordinators of one daemon, each with its timer: reads the clock for them, notices when the
/// loop was held up, carries out their effects. Lives on the thread of `io`.
class Jobs : public std::enable_shared_from_this<Jobs> {
public:
    Jobs(boost::asio::io_context& io, const Limits& limits, Rng rng, JobHooks hooks,
         Durable durable, bool is_lasting);
    Jobs(const Jobs&) = delete;
    Jobs& operator=(const Jobs&) = delete;

    /// Goes on with what the journal holds. Records that cannot be used are left out, with a line;
    /// their nodes are then asked what they hold.
    void restore(const std::map<JobId, std::string>& records);

    /// There is a coordinator for `job` now. False: Limits::jobs_max others are there.
    [[nodiscard]] bool open(const JobId& job);

    /// Gives `input` to the coordinator of `job`. False: it is gone by now (closed long ago).
    bool step(const JobId& job, const Input& input);

    /// Null: there is none.
    [[nodiscard]] const Run* run(const JobId& job) const;

    [[nodiscard]] std::size_t size() const { return jobs_.size(); }
    /// Somebody has joined one; who is not fit has not.
    [[nodiscard]] bool has_had_any() const { return has_had_any_; }
    [[nodiscard]] bool are_all_done() const;

    /// The coordinators, for those who only look.
    void visit(const std::function<void(const JobId&, const Coordinator&)>& look) const;

    /// Nothing is left to be told: the journal may forget all runs.
    void erase_records();

    /// No hook is called after this.
    void stop();

private:
    struct Job {
        Job(boost::asio::io_context& io, const JobId& id, const CoordinatorOptions& options,
            Rng rng);

        Coordinator coordinator;
        std::shared_ptr<Recorder> recorder;
        boost::asio::steady_timer timer;
        std::optional<Instant> armed;    ///< when the timer fires
        std::uint64_t armed_number = 0;  ///< tells that firing from earlier ones
    };

    void step_at(Instant now, const JobId& id, Job& job, const Input& input);
    void admit_hold_up(Instant now, const JobId& id, Job& job);
    Job& add(const JobId& id);
    void durability_changed(const JobId& id, const std::string& fault);
    void carry_out(const JobId& id, const Effect& effect);
    void arm(Instant now, const JobId& id, Job& job);
    void timer_fired(const JobId& id, std::uint64_t number);
    void forget(const JobId& id);
    void forget_closed(Instant now);
    void forget_one_without_run();

    boost::asio::io_context& io_;
    CoordinatorOptions options_;
    Rng rng_;
    JobHooks hooks_;
    Durable durable_;
    std::map<JobId, std::unique_ptr<Job>> jobs_;
    std::uint64_t last_armed_number_ = 0;
    bool has_had_any_ = false;
    bool is_stopped_ = false;
};

}  // namespace ddprun::rdzv
