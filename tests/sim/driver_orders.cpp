// Operators give orders at random, and the simulation judges the outcome.

#include <utility>

#include <fmt/format.h>

#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "tests/sim/driver.hpp"

namespace ddprun::sim {

namespace {

/// So that a run ends: what is asked for lasts no longer.
constexpr int kForMsMax = 8000;

rdzv::OperatorOrder draw_order(Dice& dice, const SimOptions& options) {
    constexpr std::size_t kNobody = 1;
    rdzv::OperatorOrder order{.job = JobId("sim")};
    // Each kind of order draws all values, so that leaving one kind out would change no other.
    const std::uint64_t kind = dice.below(2 * rdzv::kOperatorActionNames.size() + 2);
    order.action = rdzv::kOperatorActionNames[kind % rdzv::kOperatorActionNames.size()].second;
    const std::uint64_t node = dice.below(static_cast<std::uint64_t>(options.nodes) + kNobody);
    const Milliseconds duration(dice.between(0, kForMsMax));
    order.nodes = dice.between(1, options.settings.max_nodes + 1);
    order.by = "operator@sim";
    const bool is_about_job = dice.chance(1, 2);
    if (order.action == rdzv::OperatorAction::Drain ||
        order.action == rdzv::OperatorAction::Quarantine ||
        (order.action == rdzv::OperatorAction::Release && !is_about_job)) {
        order.node = fmt::format("n{}", node);
    }
    if (order.action == rdzv::OperatorAction::Hold ||
        order.action == rdzv::OperatorAction::Quarantine) {
        order.duration = duration;
    }
    // It ends everything: rarely.
    if (order.action == rdzv::OperatorAction::Stop && !dice.chance(1, 6)) {
        order.action = rdzv::OperatorAction::Restart;
    }
    return order;
}

}  // namespace

void Simulation::plan_orders() {
    if (options_.order_every <= Milliseconds(0)) {
        return;
    }
    Dice dice(options_.seed, 13);
    for (Instant at = Instant() + dice.up_to(options_.order_every * 2); at < faults_end_;
         at += dice.up_to(options_.order_every * 2) + Milliseconds(1)) {
        events_.at(at, [this, drawn = dice.next()] {
            Dice its(drawn);
            give_order(its);
        });
    }
}

void Simulation::give_order(Dice& dice) {
    const rdzv::OperatorOrder drawn = draw_order(dice, options_);
    Daemon* const daemon = deciding();
    if (daemon == nullptr || daemon->is_paused) {
        return;
    }
    const Result<rdzv::OperatorOrder> order =
        rdzv::decode<rdzv::OperatorOrder>(rdzv::encode(drawn), options_.limits);
    if (!order.has_value() || order.value() != drawn) {
        checker_.violate("codec", "an order is not what it was");
        return;
    }
    const std::string_view action = rdzv::word_of(drawn.action, rdzv::kOperatorActionNames);
    trace("operator",
          fmt::format("{} {} {} ms {}", action, drawn.node, drawn.duration.count(), drawn.nodes));
    last_fault_at_ = events_.now();
    const std::uint64_t number = ++last_order_;
    orders_.insert(number);
    rdzv::DaemonEffects effects;
    daemon->host->order(events_.now(), number, drawn, "sim", effects);
    carry_out(*daemon, effects);
}

/// The operator hears that: it is durable, if anything is.
void Simulation::hear_answer(const Daemon& daemon, const rdzv::AnswerOrder& answer) {
    trace("operator",
          fmt::format("<- {} {}", rdzv::word_of(answer.reply.fault, rdzv::kOrderFaultNames),
                      answer.reply.text));
    if (answer.reply.text.empty()) {
        checker_.violate("orders", "an order is answered without a word");
    }
    const rdzv::Run* const run = daemon.run();
    if (orders_.erase(answer.number) == 0) {
        checker_.violate("orders", "an order is answered twice");
    } else if (run != nullptr && answer.reply.fault == rdzv::OrderFault::None) {
        checker_.order_answered(*run, answer.number);
    }
}

/// From now on it is to leave, unless the rendezvous loses it first.
void Simulation::note_drained(const rdzv::Run& run, const rdzv::OrderGiven& given,
                              const rdzv::Effects& effects) {
    bool is_taken = false;
    effects.for_each([&](const rdzv::Effect& effect) {
        const auto* ordered = std::get_if<rdzv::Ordered>(&effect);
        is_taken |= ordered != nullptr && ordered->reply.fault == rdzv::OrderFault::None;
    });
    if (!is_taken || given.order.action != rdzv::OperatorAction::Drain) {
        return;
    }
    for (Machine& machine : machines_) {
        // It may not have heard yet that it was accepted.
        const bool is_of_run = machine.token == run.token || machine.token.empty();
        if (machine.node.value() == given.order.node && is_of_run) {
            machine.drained_at = machine.drained_at.value_or(events_.now());
        }
    }
}

/// A drained node without workers may go (L3).
void Simulation::judge_drained(const rdzv::Run& run, const Machine& machine) {
    const auto node = run.nodes.find(machine.node);
    if (!machine.drained_at.has_value() || machine.token != run.token || node == run.nodes.end() ||
        !node->second.leaving().has_value() || !machine.workers.empty()) {
        return;
    }
    const Duration waited = events_.now() - std::max({*machine.drained_at, machine.accepted_at,
                                                      machine.disturbed_until, calm_since_});
    const Duration stopping = options_.settings.shutdown_timeout + options_.settings.failure_grace +
                              options_.limits.unkillable_after + options_.limits.stop_slack;
    if (waited > stopping + Milliseconds(5000) + there_and_back(machine)) {
        checker_.violate("L3", fmt::format("{} was drained, is empty and is not let go: '{}'",
                                           name_of(machine), machine.supervisor->explain()));
    }
}

}  // namespace ddprun::sim
