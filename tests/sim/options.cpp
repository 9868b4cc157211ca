#include "tests/sim/options.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "rendezvous/wire/node_sizes.hpp"
#include "tests/sim/dice.hpp"
#include "tests/sim/fault_plan.hpp"

namespace ddprun::sim {

namespace {

Milliseconds draw_ms(Dice& dice, std::int64_t least, std::int64_t most) {
    return dice.between(Milliseconds(least), Milliseconds(most));
}

int draw_nodes(Dice& dice, NodeRange range) {
    if (range.most > 0) {
        return dice.between(range.least, range.most);
    }
    // Most mistakes show with few nodes already, and faster.
    return dice.chance(4, 5) ? dice.between(1, 6) : dice.between(7, 16);
}

void draw_settings(Dice& dice, const SimOptions& options, rdzv::JobSettings& settings) {
    settings.max_nodes = dice.between(1, options.nodes);
    if (options.nodes > 16) {
        settings.max_nodes = dice.between(options.nodes / 2, options.nodes);
    }
    settings.min_nodes = dice.between(1, settings.max_nodes);
    settings.max_restarts = dice.chance(1, 3) ? 0 : dice.between(1, 12);
    if (dice.chance(1, 8)) {
        settings.max_restarts = 100;
    }
    settings.max_node_losses = dice.chance(1, 2) ? -1 : dice.between(0, 4);
    settings.max_restarts_at_step = dice.between(0, 3);
    settings.grow = dice.chance(3, 4);
    settings.patience = draw_ms(dice, 0, 3000);
    settings.join_timeout = draw_ms(dice, 5000, 30000);
    settings.grow_delay = draw_ms(dice, 0, 5000);
    settings.failure_grace = draw_ms(dice, 0, 2000);
    settings.shutdown_timeout = draw_ms(dice, 100, 4000);
}

/// Half of the kinds are off in a given run, so that each is also seen without the others.
void draw_weights(Dice& dice, SimOptions& options) {
    for (const FaultKindInfo& info : fault_kinds()) {
        int& weight = options.faults[static_cast<std::size_t>(info.kind)];
        weight = dice.chance(1, 2) ? 0 : dice.between(1, info.weight_max);
        const bool is_possible = info.needs == FaultNeeds::Nothing ||
                                 (info.needs == FaultNeeds::Network && !options.is_in_process) ||
                                 (info.needs == FaultNeeds::Daemons && options.daemons > 1);
        weight = is_possible ? weight : 0;
    }
}

/// One node is not like the others, or links are narrow.
void draw_unlikeness(Dice& dice, SimOptions& options) {
    const bool has_slow = dice.chance(1, 8);
    const bool has_odd = dice.chance(1, 16);
    const bool is_narrow = dice.chance(1, 8);
    const int kib = dice.between(16, 256);
    // One whose messages take longer than a third of the lease is not slow but lost again and
    // again.
    const bool is_bearable = options.delay_max * kSlowness * 3 < options.limits.lease;
    options.slow_nodes = has_slow && is_bearable && options.nodes > 1 ? 1 : 0;
    options.odd_nodes = has_odd && options.nodes > 1 ? 1 : 0;
    options.bandwidth_kib = is_narrow && !options.is_in_process ? kib : 0;
}

/// With dice of its own: all else is as it was before anything could hang.
void draw_hangs(SimOptions& options) {
    Dice dice(options.seed, 3);
    if (!dice.chance(1, 8)) {
        return;
    }
    options.settings.hang_timeout = draw_ms(dice, 500, 6000);
    options.hang_percent = dice.between(0, 60);
    options.quiet_percent = dice.between(0, 100);
}

/// The same for deaths that take their time.
void draw_deaths(SimOptions& options) {
    Dice dice(options.seed, 7);
    options.slow_death_percent = dice.chance(1, 2) ? dice.between(20, 100) : 0;
}

/// The same with those whose GPU works while they sleep.
void draw_gpus(SimOptions& options) {
    Dice dice(options.seed, 6);
    options.gpu_percent = dice.chance(3, 4) ? 0 : dice.between(0, 100);
}

/// The same with what each node runs before a generation.
void draw_preflight(SimOptions& options) {
    Dice dice(options.seed, 4);
    options.has_preflight = dice.chance(1, 8);
    options.unfit_percent = dice.between(0, 40);
}

/// The same with sizes: a unit, or some of the numbers up to the maximum.
void draw_sizes(SimOptions& options) {
    Dice dice(options.seed, 8);
    rdzv::JobSettings& settings = options.settings;
    const bool has_sizes = dice.chance(1, 4);
    const bool has_unit = dice.chance(1, 2);
    const int unit = dice.between(2, 4);
    if (!has_sizes || settings.max_nodes < 2) {
        return;
    }
    constexpr int kListedMax = 62;  // that many a knob can say
    if (has_unit || settings.max_nodes > kListedMax) {
        settings.node_unit = unit;
    } else {
        for (int size = 1; size < settings.max_nodes; ++size) {
            if (dice.chance(1, 2)) {
                settings.node_sizes.push_back(size);
            }
        }
        settings.node_sizes.push_back(settings.max_nodes);
    }
    make_consistent(options);
}

/// The same with programs that differ.
void draw_programs(SimOptions& options) {
    Dice dice(options.seed, 9);
    const bool has_unlike = dice.chance(1, 8);
    const int unlike = dice.between(1, options.nodes);
    const bool is_strict = dice.chance(1, 2);
    if (has_unlike && options.nodes > 1) {
        options.unlike_nodes = unlike;
        options.settings.same = is_strict ? rdzv::Sameness::Strict : rdzv::Sameness::Warn;
    }
}

/// The same with a command before the first workers.
void draw_prepare(SimOptions& options) {
    Dice dice(options.seed, 10);
    const bool has_prepare = dice.chance(1, 8);
    const bool is_of_job = dice.chance(1, 2);
    if (has_prepare) {
        options.prepares = is_of_job ? rdzv::Prepares::Job : rdzv::Prepares::Node;
    }
}

/// The same with standbys, whose imports are quick, so that much happens to them in one run.
void draw_standbys(SimOptions& options) {
    Dice dice(options.seed, 11);
    options.is_warm = dice.chance(1, 8);
    options.limits.standby_after = draw_ms(dice, 0, 1000);
    options.limits.standby_quiet = options.limits.standby_after / 2;
    options.limits.standby_ready_timeout = draw_ms(dice, 10, 1000);
    options.limits.standby_first_step_max = 2 * options.limits.standby_ready_timeout;
}

/// The same with what operators ask for.
void draw_orders(SimOptions& options) {
    Dice dice(options.seed, 12);
    const bool has_operator = dice.chance(1, 4);
    const Milliseconds every = draw_ms(dice, 200, 6000);
    options.order_every = has_operator ? every : Milliseconds(0);
}

/// The same with an etcd that has no room, or for which a record is too large.
void draw_full_etcd(SimOptions& options) {
    Dice dice(options.seed, 14);
    const bool is_full = dice.chance(1, 3);
    options.etcd_full_at = draw_ms(dice, 0, options.faults_for.count());
    options.etcd_full_for = draw_ms(dice, 100, 40000);
    options.etcd_grants_when_full = dice.chance(1, 2);
    if (!is_full || options.daemons == 1) {
        options.etcd_full_for = Milliseconds(0);
    }
}

/// The same with racks, and second copies of what nodes keep in memory.
void draw_partners(SimOptions& options) {
    Dice dice(options.seed, 15);
    const bool has_partners = dice.chance(1, 8);
    const int racks = dice.between(0, 4);
    if (has_partners) {
        options.racks = racks;
        options.settings.memory_replicas = 1;
    }
}

/// The bounds, the unit and the list are made to fit each other.
void make_sizes_sound(rdzv::JobSettings& settings) {
    std::vector<int>& sizes = settings.node_sizes;
    std::erase_if(sizes, [&](int size) { return size > settings.max_nodes; });
    if (!sizes.empty()) {
        settings.node_unit = 1;
        settings.min_nodes = sizes.front();
        settings.max_nodes = sizes.back();
        return;
    }
    const int unit = std::clamp(settings.node_unit, 1, settings.max_nodes);
    settings.node_unit = unit;
    settings.max_nodes -= settings.max_nodes % unit;
    settings.min_nodes =
        std::min((settings.min_nodes + unit - 1) / unit * unit, settings.max_nodes);
}

}  // namespace

SimOptions draw_options(std::uint64_t seed, NodeRange nodes) {
    Dice dice(seed);
    SimOptions options;
    options.seed = seed;
    options.range = nodes;
    options.is_in_process = dice.chance(1, 16) && nodes.most == 0;
    options.nodes = options.is_in_process ? 1 : draw_nodes(dice, nodes);
    options.slots_max = dice.between(1, 3);
    draw_settings(dice, options, options.settings);
    options.rendezvous_lost_timeout = draw_ms(dice, 2000, 30000);
    options.connect_timeout = draw_ms(dice, 5000, 60000);
    const std::int64_t delays[] = {0, 1, 20, 200, 600};
    options.delay_max = draw_ms(dice, 0, delays[dice.below(5)]);
    options.local_delay_max = draw_ms(dice, 0, delays[dice.below(4)]);
    options.journal_delay_max = draw_ms(dice, 0, delays[dice.below(4)]);
    options.start_spread = draw_ms(dice, 0, dice.chance(1, 2) ? 50 : 10000);
    options.work_max = draw_ms(dice, 50, 20000);
    // Mostly they end at about the same time: after the first exit 0 much is decided already.
    options.work_min = options.work_max * dice.between(0, 3) / 3;
    options.clock_drift_percent = dice.chance(1, 2) ? 0 : dice.between(1, 20);
    options.timer_grain = Milliseconds(dice.chance(3, 4) ? 0 : dice.between(1, 100));
    options.sigterm_ignored_percent = dice.chance(1, 2) ? 0 : dice.between(0, 60);
    options.sigterm_exits_zero_percent = dice.between(0, 100);
    options.returns_percent = dice.between(0, 100);
    options.unkillable_percent = dice.chance(1, 8) ? dice.between(1, 10) : 0;
    options.runtime_percent = dice.between(0, 100);
    options.collateral_percent = dice.chance(1, 2) ? 0 : dice.between(0, 100);
    options.progress_percent = dice.chance(3, 4) ? 0 : dice.between(0, 100);
    options.faults_for = draw_ms(dice, 0, 30000);
    options.fault_every = draw_ms(dice, 20, 4000);
    options.daemons = dice.chance(1, 4) && !options.is_in_process ? dice.between(2, 3) : 1;
    draw_unlikeness(dice, options);
    draw_weights(dice, options);
    draw_hangs(options);
    draw_deaths(options);
    draw_gpus(options);
    draw_preflight(options);
    draw_sizes(options);
    draw_programs(options);
    draw_prepare(options);
    draw_standbys(options);
    draw_orders(options);
    draw_full_etcd(options);
    draw_partners(options);
    return options;
}

void make_consistent(SimOptions& options) {
    options.nodes = std::max(options.nodes, 1);
    options.is_in_process = options.is_in_process && options.nodes == 1 && options.daemons == 1;
    options.slow_nodes = std::min(options.slow_nodes, options.nodes);
    options.odd_nodes = std::min(options.odd_nodes, options.nodes);
    options.unlike_nodes = std::min(options.unlike_nodes, options.nodes);
    rdzv::JobSettings& settings = options.settings;
    settings.max_nodes = std::clamp(settings.max_nodes, 1, options.nodes);
    settings.min_nodes = std::clamp(settings.min_nodes, 1, settings.max_nodes);
    make_sizes_sound(settings);
    options.work_max = std::max(options.work_max, options.work_min);
    if (settings.hang_timeout == Milliseconds::zero()) {
        options.hang_percent = 0;  // nothing would end them
        options.gpu_percent = 0;   // no watch reads GPUs
    }
    if (!options.has_preflight) {
        options.unfit_percent = 0;
    }
}

std::string describe(const SimOptions& options) {
    const rdzv::JobSettings& settings = options.settings;
    return fmt::format(
        "seed {}: {} nodes{}, {} daemons, --nnodes {}, <= {} slots, --max-restarts {}, losses "
        "{}, delays "
        "<= {} ms, faults for {} ms every {} ms",
        options.seed, options.nodes, options.is_in_process ? " (in process)" : "", options.daemons,
        rdzv::nnodes_of(settings), options.slots_max, settings.max_restarts,
        settings.max_node_losses, options.delay_max.count(), options.faults_for.count(),
        options.fault_every.count());
}

}  // namespace ddprun::sim
