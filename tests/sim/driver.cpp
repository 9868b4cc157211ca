#include "tests/sim/driver.hpp"

#include <utility>

#include <fmt/format.h>

namespace ddprun::sim {

namespace {

/// After the last fault everything must have ended within this.
constexpr Milliseconds kPatienceWithTheEnd{300000};
constexpr std::uint64_t kEventsAtOnceMax = 100000;
/// In thousandths: a leader's lease is counted on to nine tenths, because clocks differ.
constexpr int kDaemonDrift = 90;

}  // namespace

Simulation::Simulation(SimOptions options, bool keeps_trace)
    : options_(std::move(options)),
      log_(keeps_trace),
      checker_(options_.limits, !options_.is_in_process),
      network_(events_, options_),
      dice_(options_.seed, 2),
      etcd_(options_.limits.leader_lease),
      plan_(plan_faults(options_)),
      faults_end_(Instant(options_.faults_for)) {
    network_.to_rendezvous = [this](ConnectionId connection, int whom, const Packet& packet) {
        Daemon& one = daemon(whom);
        if (one.is_up) {
            in_daemon(one, [this, &one, connection, packet] {
                rendezvous_receives(one, connection, packet);
            });
        }
    };
    network_.to_node = [this](ConnectionId connection, int node, Packet packet) {
        node_receives(connection, node, std::move(packet));
    };
    for (int i = 0; i < options_.nodes; ++i) {
        Machine machine;
        machine.index = i;
        machine.node = NodeId(fmt::format("n{}", i));
        machine.dice = Dice(options_.seed, 100000 + static_cast<std::uint64_t>(i));
        machine.slots = machine.dice.between(1, options_.slots_max);
        Dice gpu(options_.seed, 200000 + static_cast<std::uint64_t>(i));
        machine.shows_by_gpu = gpu.percent(options_.gpu_percent);
        const int drift = options_.clock_drift_percent * 10;
        machine.clock_permille = 1000 + machine.dice.between(-drift, drift);
        machines_.push_back(std::move(machine));
    }
    daemons_.resize(static_cast<std::size_t>(options_.daemons));
    for (Daemon& one : daemons_) {
        one.index = static_cast<int>(&one - daemons_.data());
        one.name = fmt::format("rdzv{}:29400", one.index);
        if (has_several() && options_.clock_drift_percent > 0) {
            one.clock_permille = 1000 + dice_.between(-kDaemonDrift, kDaemonDrift);
        }
        open_daemon(one);
    }
}

SimResult Simulation::run() {
    trace("sim", describe(options_));
    for (int i = 0; i < options_.nodes; ++i) {
        events_.after(machine(i).dice.up_to(options_.start_spread), [this, i] { boot(i); });
    }
    for (const PlannedFault& fault : plan_) {
        events_.at(fault.at, [this, &fault] { inject(fault); });
    }
    plan_orders();
    plan_full_etcd();
    judge_regularly();
    const Instant end = faults_end_ + kPatienceWithTheEnd;
    while (!events_.is_empty() && !checker_.violation().has_value() && !is_over() &&
           events_.next_at() <= end) {
        events_.run_next();
        if (events_.executed_at_once() > kEventsAtOnceMax + machines_.size() * 100) {
            checker_.violate("L3", "time stands still: a loop of events");
        }
    }
    judge_end();
    if (checker_.violation().has_value()) {
        trace("judge", *checker_.violation());
    }
    return SimResult{.hash = log_.hash(),
                     .events = events_.executed(),
                     .virtual_time = events_.now().time_since_epoch(),
                     .verdict = checker_.last_verdict(),
                     .violation = checker_.violation(),
                     .faults = plan_.size(),
                     .trace = log_.lines()};
}

bool Simulation::is_over() const {
    return alive_ == 0 && !has_faults() &&
           events_.now() > Instant(options_.start_spread) + options_.connect_timeout;
}

void Simulation::trace(const std::string& who, const std::string& text) {
    log_.add(events_.now(), who, text);
}

}  // namespace ddprun::sim
