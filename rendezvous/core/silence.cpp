#include "rendezvous/core/silence.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

/// Half of the nodes, and at least two, have missed more than a beat or two at once: rather this
/// process or its network than theirs.
bool is_silence_ours(const Run& run, const Limits& limits, Instant now) {
    const Instant suspicious = now + limits.lease / 2;
    std::size_t silent = 0;
    for (const auto& [lease_end, id] : run.nodes.leases()) {
        if (lease_end > suspicious) {
            break;
        }
        ++silent;
    }
    return DDP_RULE(silent >= 2 && silent * 2 >= run.nodes.size(), NoSelfDoubt, false);
}

/// When a node is lost whatever this process doubts: own stalls since the node spoke do not count.
Instant end_of_excuses(const Run& run, const Node& node, const Limits& limits) {
    const Duration held_up = run.doubt.held_up_since_heard(node);
    return std::max(node.lease_end(), node.last_heard + limits.doubted_silence_max + held_up);
}

}  // namespace

Duration Doubt::held_up_since_heard(const Node& node) const {
    return held_up_for - node.held_up_before;
}

void renew_lease(Step& step, Node& node) {
    node.last_heard = step.now;
    node.held_up_before = step.run.doubt.held_up_for;
    if (step.options.has_leases) {
        const Instant end =
            DDP_RULE(step.now + step.options.limits.lease, SilentDeathIgnored, Instant::max());
        step.run.nodes.set_lease(node.info.node, end);
    }
}

void doubt_silence(Step& step, Duration by) {
    Run& run = step.run;
    run.doubt.held_up_for += by;
    // Agents may have given up connections that were not answered, and all they had said there. How
    // long we were away is known to within a lease only, and beats of before prove little.
    const Milliseconds grace = step.options.limits.reconnect_grace;
    run.doubt.until = std::max(run.doubt.until.value_or(step.now), step.now + grace);
    trace(step, fmt::format("held up: no silence is judged for {} ms", grace.count()));
}

void judge_leases(Step& step) {
    Run& run = step.run;
    const Limits& limits = step.options.limits;
    const bool is_in_doubt = run.doubt.is_on(step.now);
    const bool is_doubt_over =
        !is_in_doubt && std::exchange(run.doubt.until, std::nullopt).has_value();
    if (run.nodes.leases().empty() || run.nodes.leases().begin()->first > step.now) {
        return;
    }
    if (!is_in_doubt && !is_doubt_over && !is_closed(run) &&
        is_silence_ours(run, limits, step.now)) {
        DDP_PROBE(silence_may_be_ours);
        run.doubt.until = step.now + limits.self_doubt;
        const std::string text =
            fmt::format("half of the nodes fell silent at once: nothing is judged for {} ms",
                        limits.self_doubt.count());
        note(step, text);
        publish(step, EventKind::Notice, {{"text", text}});
        return;
    }
    while (!run.nodes.leases().empty() && run.nodes.leases().begin()->first <= step.now) {
        const NodeId id = run.nodes.leases().begin()->second;
        const Node& node = run.nodes.at(id);
        if (is_in_doubt && end_of_excuses(run, node, limits) > step.now) {
            break;  // the others were heard later
        }
        const auto silence = std::chrono::duration_cast<Milliseconds>(step.now - node.last_heard);
        drop_connection(step, node, "no sign of life for a whole lease");
        lose_silent_node(step, id, fmt::format("was silent for {} ms", silence.count()));
    }
}

std::optional<Instant> leases_deadline(const Run& run, const Limits& limits, Instant now) {
    if (!run.doubt.until) {
        return run.nodes.leases().empty() ? std::optional<Instant>()
                                          : run.nodes.leases().begin()->first;
    }
    // Never asleep for longer than a lease, or a stall of this process would not be noticed.
    Instant deadline = std::min(*run.doubt.until, now + limits.lease);
    if (!run.nodes.leases().empty()) {
        const Node& longest = run.nodes.at(run.nodes.leases().begin()->second);
        deadline = std::min(deadline, end_of_excuses(run, longest, limits));
    }
    return deadline;
}

}  // namespace ddprun::rdzv
