#include "rendezvous/core/quarantine.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

std::string text_of(const Quarantine& one, const Limits& limits) {
    return fmt::format("node {} {}: left out for {} s while others suffice", one.hostname, one.why,
                       limits.quarantine_cooldown.count() / 1000);
}

/// False if there is no room.
bool quarantine(Step& step, const NodeId& id, Quarantine one, bool is_news = true) {
    Run& run = step.run;
    const Limits& limits = step.options.limits;
    std::erase_if(run.quarantined, [&](const auto& old) { return old.second.until <= step.now; });
    if (run.quarantined.size() >= limits.nodes_max && !run.quarantined.contains(id)) {
        return false;
    }
    one.until = step.now + limits.quarantine_cooldown;
    if (is_news) {
        note(step, text_of(one, limits));
    }
    run.blames.erase(id);
    run.quarantined[id] = std::move(one);
    write_behind(step);
    return true;
}

}  // namespace

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
        quarantine(step, id, Quarantine{.hostname = hostname, .why = why});
    }
}

bool quarantine_unfit(Step& step, const NodeId& id, const std::string& hostname,
                      const std::string& why) {
    Quarantine unfit{
        .hostname = hostname, .why = fmt::format("is not fit ({})", why), .is_unfit = true};
    // A ddprun that is started again and again until it is fit must not fill the timeline.
    const bool is_news =
        !is_quarantined(step.run, id, step.now) || step.run.quarantined.at(id).why != unfit.why;
    return quarantine(step, id, std::move(unfit), is_news) && is_news;
}

void judge_unfit(Step& step, const std::vector<Unfit>& told) {
    Run& run = step.run;
    for (const Unfit& unfit : told) {
        Node* known = find_node(run, unfit.node);
        if (known == nullptr) {
            if (!DDP_BUG(UnfitStrangerForgotten) &&
                quarantine_unfit(step, unfit.node, unfit.hostname, unfit.why)) {
                tell_head(step, text_of(run.quarantined.at(unfit.node), step.options.limits));
            }
        } else if ((unfit.run_token == run.token && unfit.process == known->info.process) ||
                   DDP_BUG(UnfitStrangerBelieved)) {
            drop_connection(step, *known, "this node is not fit");
            gone_for_good(step, unfit.node, unfit.why);
        } else {
            trace(step, fmt::format("another ddprun with the name of node {} is not fit",
                                    known->info.hostname));
        }
    }
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
