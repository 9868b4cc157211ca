#include "rendezvous/core/run.hpp"

#include <algorithm>

#include "base/planted_bug.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

namespace {

std::size_t asked_maximum(const Run& run) {
    const bool is_limited = DDP_RULE(run.target_nodes.has_value(), TargetIgnored, false);
    return static_cast<std::size_t>(is_limited ? *run.target_nodes : run.settings.max_nodes);
}

}  // namespace

std::size_t minimum(const Run& run) {
    return static_cast<std::size_t>(run.settings.min_nodes);
}

void learn_size(Run& run, const Join& join) {
    run.slots_max = std::max(run.slots_max, join.slots);
    run.workers_max = smaller_bound(run.workers_max, join.workers_max);
}

int smaller_bound(int one, int other) {
    return one == 0 || other == 0 ? std::max(one, other) : std::min(one, other);
}

std::size_t maximum(const Run& run) {
    const std::size_t asked = asked_maximum(run);
    const auto served = static_cast<std::size_t>(run.workers_max);
    if (served == 0 || asked * static_cast<std::size_t>(run.slots_max) <= served) {
        return asked;
    }
    int largest = 1;  // of those that are here: one that has gone takes no room
    for (const auto& [id, node] : run.nodes) {
        largest = std::max(largest, node.info.slots);
    }
    return std::clamp(served / static_cast<std::size_t>(largest), std::min(minimum(run), asked),
                      asked);
}

bool is_bound_by_store(const Run& run) {
    return maximum(run) < asked_maximum(run);
}

std::optional<std::size_t> larger_size(const Run& run, std::size_t nodes) {
    const std::optional<std::size_t> next = next_size(run.settings, nodes);
    return next && *next <= maximum(run) ? next : std::nullopt;
}

bool is_held(const Run& run, Instant now) {
    return DDP_RULE(run.hold && run.hold->until > now, HoldIgnored, false);
}

bool is_closed(const Run& run) {
    return std::holds_alternative<Closed>(run.phase);
}

}  // namespace ddprun::rdzv
