#include "rendezvous/core/run.hpp"

#include "base/planted_bug.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

std::size_t minimum(const Run& run) {
    return static_cast<std::size_t>(run.settings.min_nodes);
}

std::size_t maximum(const Run& run) {
    const bool is_limited = run.target_nodes && !DDP_BUG(TargetIgnored);
    return static_cast<std::size_t>(is_limited ? *run.target_nodes : run.settings.max_nodes);
}

std::optional<std::size_t> larger_size(const Run& run, std::size_t nodes) {
    const std::optional<std::size_t> next = next_size(run.settings, nodes);
    return next && *next <= maximum(run) ? next : std::nullopt;
}

bool is_held(const Run& run, Instant now) {
    return run.hold && run.hold->until > now && !DDP_BUG(HoldIgnored);
}

bool is_closed(const Run& run) {
    return std::holds_alternative<Closed>(run.phase);
}

}  // namespace ddprun::rdzv
