// Nodes that keep failing, or are not fit, are left out for a while where others suffice.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/planted_bug.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

void blame(Step& step, const NodeId& id, const std::string& hostname) {
    Run& run = step.run;
    const Limits& limits = step.options.limits;
    if (run.blames.size() >= limits.nodes_max && !run.blames.contains(id)) {
        return;
    }
    std::deque<Instant>& blames = run.blames[id];
    blames.push_back(step.now);
    const std::size_t enough = static_cast<std::size_t>(limits.quarantine_after);
    while (blames.size() > enough || step.now - blames.front() > limits.quarantine_window) {
        blames.pop_front();
    }
    if (blames.size() >= enough) {
        quarantine_if_dispensable(step, id, hostname,
                                  fmt::format("began {} failures within {} s", blames.size(),
                                              limits.quarantine_window.count() / 1000));
    }
}

void quarantine_if_dispensable(Step& step, const NodeId& id, const std::string& hostname,
                               const std::string& why) {
    // A node that has just been lost is not among them any more.
    const std::size_t others = step.run.nodes.size() - (step.run.nodes.contains(id) ? 1 : 0);
    if (others >= minimum(step.run)) {
        quarantine(step, id, hostname, why);
    }
}

void quarantine(Step& step, const NodeId& id, const std::string& hostname, const std::string& why) {
    Run& run = step.run;
    const Limits& limits = step.options.limits;
    std::erase_if(run.quarantined, [&](const auto& one) { return one.second.until <= step.now; });
    if (run.quarantined.size() >= limits.nodes_max) {
        return;
    }
    run.blames.erase(id);
    run.quarantined[id] = Quarantine{.until = step.now + limits.quarantine_cooldown, .why = why};
    persist(step, false);
    note(step, fmt::format("node {} {}: left out for {} s while others suffice", hostname, why,
                           limits.quarantine_cooldown.count() / 1000));
}

bool is_quarantined(const Run& run, const NodeId& id, Instant now) {
    const auto found = run.quarantined.find(id);
    return found != run.quarantined.end() && found->second.until > now &&
           !DDP_BUG(QuarantineIgnored);
}

std::size_t healthy_count(const Run& run, Instant now) {
    const auto is_ready_and_ill = [&](const auto& one) {
        return one.second.until > now && run.ready.contains(one.first);
    };
    return run.ready.size() -
           static_cast<std::size_t>(
               std::count_if(run.quarantined.begin(), run.quarantined.end(), is_ready_and_ill));
}

std::size_t usable_count(const Run& run, Instant now) {
    const std::size_t healthy = healthy_count(run, now);
    return healthy >= minimum(run) ? healthy : run.ready.size();
}

std::optional<Instant> quarantine_end(const Run& run, Instant now) {
    std::optional<Instant> end;
    for (const auto& [id, one] : run.quarantined) {
        if (one.until > now && run.ready.contains(id) && (!end || one.until < *end)) {
            end = one.until;
        }
    }
    return end;
}

}  // namespace ddprun::rdzv
