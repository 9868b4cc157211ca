#include "tests/sim/options.hpp"

#include <fmt/format.h>

namespace ddprun::sim {

namespace {

Milliseconds draw_ms(Rng& rng, std::uint64_t least, std::uint64_t most) {
    return Milliseconds(static_cast<std::int64_t>(least + rng.below(most - least + 1)));
}

int draw_int(Rng& rng, int least, int most) {
    return least + static_cast<int>(rng.below(static_cast<std::uint64_t>(most - least + 1)));
}

/// Half of the kinds are off in a given run, so that each is also seen without the others.
int draw_weight(Rng& rng, int most) {
    return rng.chance(1, 2) ? 0 : draw_int(rng, 1, most);
}

}  // namespace

SimOptions draw_options(std::uint64_t seed) {
    Rng rng(seed * 0x9e3779b97f4a7c15ULL + 1);
    SimOptions options;
    options.seed = seed;
    options.is_in_process = rng.chance(1, 16);
    options.nodes = options.is_in_process ? 1 : draw_int(rng, 2, 6);
    options.slots_max = draw_int(rng, 1, 3);
    rdzv::JobSettings& settings = options.settings;
    settings.max_nodes = draw_int(rng, 1, options.nodes);
    settings.min_nodes = draw_int(rng, 1, settings.max_nodes);
    settings.max_restarts = rng.chance(1, 3) ? 0 : draw_int(rng, 1, 12);
    settings.max_node_losses = rng.chance(1, 2) ? -1 : draw_int(rng, 0, 4);
    settings.grow = rng.chance(3, 4);
    settings.patience = draw_ms(rng, 0, 3000);
    settings.join_timeout = draw_ms(rng, 5000, 30000);
    settings.grow_delay = draw_ms(rng, 0, 5000);
    settings.failure_grace = draw_ms(rng, 0, 2000);
    settings.shutdown_timeout = draw_ms(rng, 100, 4000);
    options.rendezvous_lost_timeout = draw_ms(rng, 2000, 30000);
    options.connect_timeout = draw_ms(rng, 5000, 60000);
    const std::uint64_t delays[] = {0, 1, 20, 200, 600};
    options.delay_max = draw_ms(rng, 0, delays[rng.below(5)]);
    options.local_delay_max = draw_ms(rng, 0, delays[rng.below(4)]);
    options.start_spread = draw_ms(rng, 0, rng.chance(1, 2) ? 50 : 10000);
    options.work_max = draw_ms(rng, 50, 20000);
    // Mostly they end at about the same time: after the first exit 0 much is decided already.
    options.work_min = options.work_max * draw_int(rng, 0, 3) / 3;
    options.sigterm_ignored_percent = rng.chance(1, 2) ? 0 : draw_int(rng, 0, 60);
    options.sigterm_exits_zero_percent = draw_int(rng, 0, 100);
    options.returns_percent = draw_int(rng, 0, 100);
    options.unkillable_percent = rng.chance(1, 8) ? draw_int(rng, 1, 10) : 0;
    options.faults_for = draw_ms(rng, 0, 30000);
    options.fault_every = draw_ms(rng, 20, 4000);
    FaultWeights& faults = options.faults;
    faults.worker_crash = draw_weight(rng, 10);
    faults.worker_exits_early = draw_weight(rng, 4);
    faults.node_kill = draw_weight(rng, 6);
    faults.agent_signal = draw_weight(rng, 3);
    faults.signal_everything = draw_weight(rng, 1);
    faults.keeper_loss = draw_weight(rng, 4);
    if (!options.is_in_process) {
        faults.connection_reset = draw_weight(rng, 10);
        faults.connection_end = draw_weight(rng, 3);
        faults.connection_clog = draw_weight(rng, 8);
        faults.rendezvous_restart = draw_weight(rng, 1);
        faults.rendezvous_held_up = draw_weight(rng, 2);
    }
    options.runtime_percent = draw_int(rng, 0, 100);
    if (!options.is_in_process) {
        faults.agent_stall = draw_weight(rng, 4);
    }
    return options;
}

std::string describe(const SimOptions& options) {
    const rdzv::JobSettings& settings = options.settings;
    return fmt::format(
        "seed {}: {} nodes{}, --nnodes {}:{}, <= {} slots, --max-restarts {}, losses {}, delays "
        "<= {} ms, faults for {} ms every {} ms",
        options.seed, options.nodes, options.is_in_process ? " (in process)" : "",
        settings.min_nodes, settings.max_nodes, options.slots_max, settings.max_restarts,
        settings.max_node_losses, options.delay_max.count(), options.faults_for.count(),
        options.fault_every.count());
}

}  // namespace ddprun::sim
