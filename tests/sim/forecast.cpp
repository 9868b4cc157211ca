#include "tests/sim/forecast.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent/supervise/supervisor.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"
#include "tests/sim/cpu_time.hpp"
#include "tests/sim/dice.hpp"
#include "tests/sim/event_queue.hpp"

namespace ddprun::sim {

namespace {

constexpr Duration kMessageTakes = std::chrono::microseconds(300);
constexpr Duration kJournalTakes = Milliseconds(5);
constexpr Duration kProofTakes = Milliseconds(5);
constexpr Duration kStoreTakes = Milliseconds(1);
constexpr Milliseconds kForever{std::int64_t{1} << 40};

struct Host {
    std::unique_ptr<agent::Supervisor> supervisor;  ///< null: away
    ConnectionId connection;
    std::uint64_t life = 0;
    std::uint16_t port = 1000;
};

/// The job, its nodes, and where its time goes. Messages, workers and timers are events while
/// something happens. While all is well nothing is simulated: time jumps to what happens next, and
/// a beat of every node stands for all that there have been.
class Job {
public:
    explicit Job(const ForecastOptions& options)
        : options_(options),
          dice_(options.seed),
          coordinator_(JobId("forecast"), {.limits = limits(options), .has_leases = true}, Rng(1)) {
        settings_.max_nodes = options.nodes;
        settings_.min_nodes = options.min_nodes > 0 ? options.min_nodes : options.nodes;
        settings_.max_restarts = 1 << 30;
        settings_.max_restarts_at_step = 0;
        settings_.patience = Milliseconds(1000);
        settings_.join_timeout = kForever;
        hosts_.resize(static_cast<std::size_t>(options.nodes + options.spares));
    }

    Forecast run();

private:
    static Limits limits(const ForecastOptions& options) {
        Limits limits;
        limits.lease = std::chrono::duration_cast<Milliseconds>(options.lease);
        limits.beat_interval = limits.lease / 5;
        return limits;
    }

    void boot(std::size_t host);
    void step(const rdzv::Input& input);
    void step(std::size_t host, const agent::Input& input);
    void carry_out(std::size_t host, const agent::Effect& effect);
    /// `action` after `delay`, unless that agent is gone by then.
    void later(std::size_t host, Duration delay, std::function<void()> action);
    void end_workers(std::size_t host, Generation generation);

    [[nodiscard]] bool is_settled() const;
    void advance(Instant to);
    void beat();
    void fail();
    void draw_failure();
    /// Does the next thing. False: the end has come.
    bool do_next();

    void training_ends(bool is_saved);
    void note_phase();

    ForecastOptions options_;
    Dice dice_;
    EventQueue events_;
    rdzv::Coordinator coordinator_;
    rdzv::JobSettings settings_;
    std::vector<Host> hosts_;
    std::vector<std::size_t> host_of_connection_{0};
    Instant beat_at_{};
    Instant failure_at_ = Instant::max();
    std::multimap<Instant, std::size_t> repairs_;
    std::size_t unnoticed_ = 0;  ///< dead and still believed alive
    std::size_t started_ = 0;    ///< nodes of the current generation
    Generation generation_;      ///< that was started last

    Forecast result_;
    std::optional<Instant> trains_from_;
    std::optional<Instant> failed_at_;   ///< and not yet noticed
    std::optional<Instant> forms_from_;  ///< and has not started
    std::optional<Instant> waits_from_;  ///< for nodes
    Duration waited_{};                  ///< in this forming
};

void Job::later(std::size_t host, Duration delay, std::function<void()> action) {
    events_.after(delay, [this, host, life = hosts_[host].life, action = std::move(action)] {
        if (hosts_[host].life == life && hosts_[host].supervisor != nullptr) {
            action();
        }
    });
}

void Job::boot(std::size_t index) {
    Host& host = hosts_[index];
    host.life += 1;
    host.connection = ConnectionId(host_of_connection_.size());
    host_of_connection_.push_back(index);
    agent::SupervisorOptions options;
    options.limits = limits(options_);
    options.identity.job = JobId("forecast");
    options.identity.node = NodeId(fmt::format("n{:05}", index));
    options.identity.hostname = options.identity.node.value();
    options.identity.slots = 1;  // one worker stands for those of its node, which fare alike
    options.identity.settings = settings_;
    options.command = {"/bin/work"};
    host.supervisor = std::make_unique<agent::Supervisor>(std::move(options));
    step(index, agent::LinkUp{"10.0.0.1"});
}

// ---------------------------------------------------------------------------------------- effects

void Job::step(const rdzv::Input& input) {
    ++result_.steps;
    rdzv::Effects effects;
    coordinator_.step(events_.now(), input, effects);
    note_phase();
    Duration delay = kMessageTakes;
    const auto carry_out = [&](const rdzv::Effect& effect) {
        const auto* send = std::get_if<rdzv::Send>(&effect);
        if (send == nullptr || rdzv::is_acknowledgement(effect)) {
            return;
        }
        const std::size_t host = host_of_connection_[send->connection.value()];
        later(host, delay, [this, host, message = send->message] {
            step(host, agent::FromRendezvous{message});
        });
    };
    std::for_each(effects.now.begin(), effects.now.end(), carry_out);
    delay += kJournalTakes;
    std::for_each(effects.after_record.begin(), effects.after_record.end(), carry_out);
}

void Job::step(std::size_t host, const agent::Input& input) {
    ++result_.steps;
    agent::Effects effects;
    if (std::holds_alternative<agent::FromRendezvous>(input)) {
        // It has been answered all along.
        hosts_[host].supervisor->step(events_.now(), agent::FromRendezvous{rdzv::Acknowledge{0}},
                                      effects);
    }
    hosts_[host].supervisor->step(events_.now(), input, effects);
    for (const agent::Effect& effect : effects) {
        carry_out(host, effect);
    }
}

void Job::carry_out(std::size_t index, const agent::Effect& effect) {
    Host& host = hosts_[index];
    if (const auto* send = std::get_if<agent::SendToRendezvous>(&effect)) {
        const rdzv::Received received{host.connection, send->message};
        if (std::holds_alternative<rdzv::Beat>(send->message)) {
            return;
        }
        later(index, kMessageTakes, [this, received] { step(rdzv::Input(received)); });
    } else if (std::holds_alternative<agent::OpenStore>(effect)) {
        later(index, kStoreTakes, [this, index] {
            step(index, agent::StoreOpened{{.host = "10.0.0.1", .port = ++hosts_[index].port}});
        });
    } else if (const auto* start = std::get_if<agent::StartWorkers>(&effect)) {
        started_ = start->generation == generation_ ? started_ + 1 : 1;
        generation_ = start->generation;
    } else if (const auto* signal = std::get_if<agent::SignalWorkers>(&effect)) {
        later(index, std::min(options_.stop_takes, Duration(settings_.failure_grace)),
              [this, index, generation = signal->generation] { end_workers(index, generation); });
    } else if (const auto* words = std::get_if<agent::CollectLastWords>(&effect)) {
        later(index, Duration::zero(),
              [this, index, generation = words->generation, local_rank = words->local_rank] {
                  step(index, agent::LastWords{generation, local_rank, {}, {}});
              });
    } else if (const auto* empty = std::get_if<agent::EmptyGeneration>(&effect)) {
        later(index, kProofTakes, [this, index, generation = empty->generation] {
            step(index, agent::Emptied{generation});
        });
    }
}

void Job::end_workers(std::size_t host, Generation generation) {
    rdzv::Evidence evidence;
    evidence.signal = SIGTERM;
    step(host, agent::WorkerExited{
                   .generation = generation, .local_rank = LocalRank(0), .evidence = evidence});
}

// ----------------------------------------------------------------------------- where the time goes

void Job::training_ends(bool is_saved) {
    if (!trains_from_.has_value()) {
        return;
    }
    // The job gets no work done after a failure: the others wait for the one that is gone.
    const Instant end = is_saved ? events_.now() : failed_at_.value_or(events_.now());
    const Instant from = *std::exchange(trains_from_, std::nullopt);
    const Duration started_for = std::min(end - from, options_.restart_takes);
    result_.starting += started_for;
    const Duration time = end - from - started_for;
    const Duration cycle = options_.checkpoint_every + options_.checkpoint_takes;
    const auto cycles = time / cycle;
    const Duration rest = time - cycles * cycle;
    const Duration unsaved = std::min(rest, options_.checkpoint_every);
    Duration useful = cycles * options_.checkpoint_every + (is_saved ? unsaved : Duration{});
    result_.lost_work += is_saved ? Duration{} : unsaved;
    result_.checkpoints += cycles * options_.checkpoint_takes + (rest - unsaved);
    const auto places = static_cast<Duration::rep>(coordinator_.run()->current.places.size());
    const Duration whole = useful;
    useful = useful / options_.nodes * places;
    result_.useful += useful;
    result_.smaller += whole - useful;
}

/// Follows what the coordinator does.
void Job::note_phase() {
    const rdzv::Run* run = coordinator_.run();
    const Instant now = events_.now();
    const bool is_running = std::holds_alternative<rdzv::Running>(run->phase);
    if (is_running) {
        if (waits_from_.has_value()) {
            waited_ += now - *std::exchange(waits_from_, std::nullopt);
        }
        return;
    }
    if (!forms_from_.has_value() && generation_ == run->current.number &&
        run->current.number != Generation()) {
        training_ends(!failed_at_.has_value());
        if (failed_at_.has_value()) {
            const Duration noticing = now - *failed_at_;
            result_.noticing += noticing;
            result_.noticing_max = std::max(result_.noticing_max, noticing);
        }
        failed_at_.reset();
        forms_from_ = now;
        waited_ = {};
        result_.restarts += 1;
    }
    const bool waits = std::holds_alternative<rdzv::Forming>(run->phase) &&
                       run->nodes.ready().size() < static_cast<std::size_t>(settings_.min_nodes);
    if (waits && !waits_from_.has_value()) {
        waits_from_ = now;
    }
}

// ------------------------------------------------------------------------------------------- time

bool Job::is_settled() const {
    const rdzv::Run* run = coordinator_.run();
    if (!events_.is_empty() || unnoticed_ > 0 || run == nullptr) {
        return false;
    }
    if (std::holds_alternative<rdzv::Running>(run->phase)) {
        return started_ >= run->current.places.size() && generation_ == run->current.number;
    }
    return std::holds_alternative<rdzv::Forming>(run->phase) && run->nodes.suspects().empty() &&
           run->nodes.ready().size() < static_cast<std::size_t>(settings_.min_nodes);
}

void Job::advance(Instant to) {
    events_.at(to, [] {});
    events_.run_next();
}

/// The beats of all nodes that run, five times as seldom as real ones. They are made up here: what
/// a supervisor does for one beat is the same for each.
void Job::beat() {
    for (const Host& host : hosts_) {
        if (host.supervisor != nullptr) {
            step(rdzv::Input(rdzv::Received{host.connection, rdzv::Beat{1}}));
        }
    }
    beat_at_ = events_.now() + options_.lease * 4 / 5;
}

void Job::draw_failure() {
    const double uniform = (static_cast<double>(dice_.next() >> 11) + 1) / 9007199254740993.0;
    const double wait = -std::log(uniform) * static_cast<double>(options_.mtbf.count());
    failure_at_ = events_.now() + Duration(static_cast<Duration::rep>(wait));
}

/// A member fails: its node falls silent, or one of its workers crashes.
void Job::fail() {
    draw_failure();
    const rdzv::Run& run = *coordinator_.run();
    if (!std::holds_alternative<rdzv::Running>(run.phase)) {
        return;  // nothing runs that could fail
    }
    const rdzv::Place& place = run.current.places[dice_.below(run.current.places.size())];
    const std::size_t index = std::stoul(place.node.value().substr(1));
    Host& host = hosts_[index];
    if (host.supervisor == nullptr || host.supervisor->held_generation() != run.current.number) {
        return;
    }
    result_.failures += 1;
    failed_at_ = failed_at_.value_or(events_.now());
    if (dice_.percent(options_.worker_percent)) {
        rdzv::Evidence evidence;
        evidence.exit_code = 1;
        step(index, agent::WorkerExited{.generation = run.current.number,
                                        .local_rank = LocalRank(0),
                                        .evidence = evidence});
        return;
    }
    host.supervisor.reset();
    result_.nodes_replaced += 1;
    unnoticed_ += 1;
    repairs_.emplace(events_.now() + options_.repair, index);
}

bool Job::do_next() {
    const Instant end{options_.lasts};
    const bool is_settled_now = is_settled();
    const rdzv::Run* run = coordinator_.run();
    Instant other = std::min(end, failure_at_);
    if (!repairs_.empty()) {
        other = std::min(other, repairs_.begin()->first);
    }
    Instant timer = coordinator_.next_deadline().value_or(Instant::max());
    if (is_settled_now) {
        // Growing is the one thing that a settled run does by itself.
        const rdzv::Running* running = std::get_if<rdzv::Running>(&run->phase);
        const bool grows = running != nullptr && !run->nodes.ready().empty() &&
                           run->current.places.size() < static_cast<std::size_t>(options_.nodes);
        timer =
            grows ? std::max(running->since + settings_.grow_delay, events_.now()) : Instant::max();
    }
    Instant next = std::min(other, timer);
    if (is_settled_now) {
        const Duration phase = dice_.up_to(options_.lease / 5);
        if (next - phase > events_.now()) {
            advance(next - phase);
            beat();
        }
    } else {
        next = std::min(next, beat_at_);
        if (!events_.is_empty() && events_.next_at() <= next) {
            events_.run_next();
            return true;
        }
    }
    advance(next);
    if (next >= end) {
        return false;
    }
    if (!repairs_.empty() && next >= repairs_.begin()->first) {
        const std::size_t host = repairs_.begin()->second;
        repairs_.erase(repairs_.begin());
        boot(host);
    } else if (next >= failure_at_) {
        fail();
    } else if (!is_settled_now && next >= beat_at_) {
        beat();
    } else {
        step(rdzv::Input(rdzv::Tick{}));
        unnoticed_ = 0;
        for (const Host& host : hosts_) {
            const bool is_away = host.supervisor == nullptr && host.life > 0;
            unnoticed_ += is_away && run->nodes.by_connection().contains(host.connection) ? 1 : 0;
        }
    }
    return true;
}

Forecast Job::run() {
    const double began = cpu_seconds();
    forms_from_ = Instant{};
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
        boot(i);
    }
    beat_at_ = events_.now() + options_.lease * 4 / 5;
    bool goes_on = true;
    while (goes_on) {
        goes_on = do_next();
        const bool has_started = forms_from_.has_value() && coordinator_.run() != nullptr &&
                                 std::holds_alternative<rdzv::Running>(coordinator_.run()->phase) &&
                                 generation_ == coordinator_.run()->current.number &&
                                 started_ >= coordinator_.run()->current.places.size();
        if (has_started) {
            const Duration formed = events_.now() - *forms_from_ - waited_;
            result_.forming += formed;
            result_.waiting += waited_;
            result_.forming_max = std::max(result_.forming_max, formed);
            forms_from_.reset();
            trains_from_ = events_.now();
            if (failure_at_ == Instant::max()) {
                draw_failure();
            }
        }
        if (failure_at_ == Instant::max() && !forms_from_.has_value()) {
            draw_failure();
        }
    }
    training_ends(true);
    if (forms_from_.has_value()) {
        result_.forming += events_.now() - *forms_from_;
    }
    result_.total = options_.lasts;
    result_.cpu_seconds = cpu_seconds() - began;
    return result_;
}

}  // namespace

Forecast forecast(const ForecastOptions& options) {
    return Job(options).run();
}

}  // namespace ddprun::sim
