#include "tests/sim/driver.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/protocol/codec.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

namespace {

/// After the last fault everything must have ended within this.
constexpr Milliseconds kPatienceWithTheEnd{300000};
constexpr std::uint64_t kEventsAtOnceMax = 100000;

rdzv::CoordinatorOptions coordinator_options(const SimOptions& options) {
    return {.limits = options.limits, .has_leases = !options.is_in_process};
}

bool is_beat(const rdzv::AgentMessage& message) {
    return std::holds_alternative<rdzv::Beat>(message);
}

}  // namespace

Simulation::Simulation(SimOptions options, bool keeps_trace)
    : options_(std::move(options)),
      rng_(options_.seed),
      log_(keeps_trace),
      checker_(options_.limits),
      network_(events_, rng_, options_.delay_max),
      faults_end_(Instant(options_.faults_for)) {
    coordinator_ = std::make_unique<rdzv::Coordinator>(JobId("sim"), coordinator_options(options_),
                                                       Rng(rng_.next()));
    network_.to_rendezvous = [this](ConnectionId connection, int /*node*/, Packet packet) {
        rendezvous_receives(connection, std::move(packet));
    };
    network_.to_node = [this](ConnectionId connection, int node, Packet packet) {
        node_receives(connection, node, std::move(packet));
    };
    for (int i = 0; i < options_.nodes; ++i) {
        Machine machine;
        machine.index = i;
        machine.node = NodeId(fmt::format("n{}", i));
        machine.slots =
            1 + static_cast<int>(rng_.below(static_cast<std::uint64_t>(options_.slots_max)));
        machines_.push_back(std::move(machine));
    }
}

SimResult Simulation::run() {
    trace("sim", describe(options_));
    for (int i = 0; i < options_.nodes; ++i) {
        events_.after(draw(options_.start_spread), [this, i] { boot(i); });
    }
    plan_fault();
    const Instant end = faults_end_ + kPatienceWithTheEnd;
    while (!events_.is_empty() && !checker_.violation().has_value() && !is_over() &&
           events_.next_at() <= end) {
        events_.run_next();
        if (events_.executed_at_once() > kEventsAtOnceMax) {
            checker_.violate("L3", "time stands still: a loop of events");
        }
    }
    judge_end();
    return SimResult{.hash = log_.hash(),
                     .events = events_.executed(),
                     .virtual_time = events_.now().time_since_epoch(),
                     .verdict = checker_.last_verdict(),
                     .violation = checker_.violation(),
                     .trace = log_.lines()};
}

bool Simulation::is_over() const {
    const bool is_anybody_here =
        std::any_of(machines_.begin(), machines_.end(),
                    [](const Machine& machine) { return machine.supervisor != nullptr; });
    return !has_faults() && !is_anybody_here &&
           events_.now() > Instant(options_.start_spread) + options_.connect_timeout;
}

void Simulation::judge_end() {
    if (checker_.violation().has_value()) {
        return;
    }
    for (const Machine& machine : machines_) {
        if (machine.supervisor == nullptr) {
            continue;
        }
        checker_.violate("L3", fmt::format("{} never ended; it waits: '{}'; the rendezvous: '{}'",
                                           name_of(machine), machine.supervisor->explain(),
                                           coordinator_->explain()));
    }
}

void Simulation::trace(const std::string& who, const std::string& text) {
    log_.add(events_.now(), who, text);
}

Duration Simulation::draw(Duration most) {
    return Duration(static_cast<Duration::rep>(
        rng_.below(static_cast<std::uint64_t>(std::max<Duration::rep>(most.count(), 0)) + 1)));
}

bool Simulation::percent(int percent) {
    return rng_.chance(static_cast<std::uint64_t>(percent), 100);
}

// -------------------------------------------------------------------------------- the rendezvous

void Simulation::rendezvous_receives(ConnectionId connection, Packet packet) {
    if (packet.kind != PacketKind::Message) {
        if (served_.erase(connection) > 0) {
            step_rendezvous(
                rdzv::ConnectionEnded{.connection = connection,
                                      .is_end_of_stream = packet.kind == PacketKind::EndOfStream});
        }
        return;
    }
    const Result<rdzv::AgentMessage> message =
        rdzv::decode_agent_message(packet.body, options_.limits);
    if (!message.has_value()) {
        checker_.violate("codec", message.error().what);
        return;
    }
    const bool is_join = std::holds_alternative<rdzv::Join>(message.value());
    if (is_join) {
        served_.insert(connection);
    } else if (!served_.contains(connection)) {
        return;  // of a daemon that is gone, or closed meanwhile
    }
    if (!is_beat(message.value())) {
        trace("rdzv", fmt::format("<- {} {}", connection.value(), message_text(message.value())));
    }
    step_rendezvous(rdzv::Received{.connection = connection, .message = message.value()});
}

void Simulation::step_rendezvous(const rdzv::Input& input) {
    if (coordinator_->is_forgettable(events_.now())) {
        coordinator_ = std::make_unique<rdzv::Coordinator>(
            JobId("sim"), coordinator_options(options_), Rng(rng_.next()));
        checker_.forget_run();
    }
    rdzv::Effects effects;
    checker_.before_step(*coordinator_, input);
    coordinator_->step(events_.now(), input, effects);
    checker_.after_step(*coordinator_, effects);
    carry_out(effects);
    for (const Machine& machine : machines_) {
        judge_publishing(machine);
    }
    arm_rendezvous();
}

void Simulation::carry_out(const rdzv::Effects& effects) {
    for (const rdzv::Effect& effect : effects) {
        if (const rdzv::Send* send = std::get_if<rdzv::Send>(&effect)) {
            if (!served_.contains(send->connection)) {
                checker_.violate(
                    "IO", fmt::format("sent to connection {}, which has ended: {}",
                                      send->connection.value(), message_text(send->message)));
            }
            network_.send_to_node(send->connection, rdzv::encode(send->message));
        } else if (const rdzv::CloseConnection* close =
                       std::get_if<rdzv::CloseConnection>(&effect)) {
            trace("rdzv", fmt::format("closes {}: {}", close->connection.value(), close->reason));
            for (Machine& machine : machines_) {
                // By a message of its own past that came late, here; by a second ddprun in life.
                machine.is_replaced |= machine.connection == close->connection &&
                                       close->reason.find("replaced") != std::string::npos;
            }
            served_.erase(close->connection);
            network_.close_at_rendezvous(close->connection);
        } else {
            trace("rdzv", std::get<rdzv::Trace>(effect).text);
        }
    }
}

void Simulation::arm_rendezvous() {
    const std::optional<Instant> deadline = coordinator_->next_deadline();
    if (!deadline.has_value() ||
        (rendezvous_tick_at_.has_value() && *rendezvous_tick_at_ <= *deadline)) {
        return;
    }
    const Instant at = std::max(*deadline, events_.now());
    rendezvous_tick_at_ = at;
    events_.at(at, [this, at] {
        if (rendezvous_tick_at_ != at) {
            return;
        }
        rendezvous_tick_at_.reset();
        const std::optional<Instant> due = coordinator_->next_deadline();
        if (due.has_value() && *due <= events_.now()) {
            step_rendezvous(rdzv::Tick{});
        } else {
            arm_rendezvous();
        }
    });
}

/// Where the run has gone on to another generation, those of the last may publish nothing (S18), by
/// the clock alone: their agent may be stalled.
void Simulation::judge_publishing(const Machine& machine) {
    const rdzv::Run* run = coordinator_->run();
    if (run == nullptr || run->digest.empty() || machine.supervisor == nullptr ||
        machine.workers.empty() || events_.now() >= machine.publish_until) {
        return;
    }
    // A daemon without memory cannot wait for those it does not know; an end of stream is taken for
    // the death of all that is there, and so is a new ddprun on the same node.
    if (machine.workers.front().digest != run->digest && !machine.is_lied_about &&
        !machine.is_replaced && !has_restarted_rendezvous_) {
        checker_.violate("S18", fmt::format("generation {} runs and {} may still publish",
                                            run->generation.value(), name_of(machine)));
    }
}

/// With delays below a third of the lease no undisturbed node is ever believed dead (S6).
void Simulation::judge_false_deaths(const Machine& machine,
                                    const rdzv::RendezvousMessage& message) {
    const rdzv::Stop* stop = std::get_if<rdzv::Stop>(&message);
    const bool is_fence = stop != nullptr && stop->cause == rdzv::StopCause::Fenced;
    if (is_fence && !machine.is_disturbed && !has_restarted_rendezvous_ &&
        options_.delay_max * 3 < options_.limits.lease) {
        checker_.violate("S6", fmt::format("{} was fenced without a reason", name_of(machine)));
    }
}

}  // namespace ddprun::sim
